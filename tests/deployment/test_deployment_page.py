"""docs/deployment.md says what is so: settings, commands and parts that it names exist."""

from __future__ import annotations

import re

import typer
from typer.testing import CliRunner

from services.settings import Settings
from tests.deployment.compose import ROOT, interpolate, read_compose, variables_used

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_every_setting_on_the_page_exists() -> None:
    settings = {f"GRADPROOF_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"GRADPROOF_[A-Z_]+", PAGE))
    assert named <= settings | set(variables_used())


def test_every_setting_that_compose_sets_is_on_the_page() -> None:
    for service in read_compose()["services"].values():
        assert {name for name in service["environment"] if name.startswith("GRADPROOF_")} <= set(
            re.findall(r"^\| `(GRADPROOF_[A-Z_]+)`", PAGE, re.MULTILINE)
        ) or "build" not in service


def test_every_part_of_the_compose_file_is_on_the_page() -> None:
    described = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))
    assert described == set(read_compose()["services"])


def test_every_command_on_the_page_exists() -> None:
    from api.cli.main import command_line  # noqa: PLC0415 - the whole command line: only when this test runs

    app = command_line()
    command = typer.main.get_command(app)
    words = set(re.findall(r"gradproof ((?:[a-z]+ ?)+)", PAGE))
    assert words
    for line in words:
        group, *rest = line.split()
        if group not in {"serve", "api", "worker", "token", "db", "health", "doctor"}:
            continue
        arguments = [group, *rest[:1], "--help"] if group in {"token", "db", "health"} else [group, "--help"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"gradproof {line}: {result.output}"
    assert command.name == "gradproof"


def test_the_page_and_the_compose_file_agree_on_the_versions_they_pin() -> None:
    image = interpolate(read_compose()["services"]["postgres"]["image"], {})
    major = image.partition(":")[2].split(".")[0]
    assert f"the compose file pins {major}" in PAGE
