"""`gradproof check --write-targets`: harnesses that ran become declared targets, with the same verdicts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import run

SOURCE = """import torch


class Scaled(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(dim, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2
"""
CHECK = ["check", "--checks", "gradcheck", "--no-sandbox"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    (directory / "layers.py").write_text(SOURCE, encoding="utf-8")
    return directory


def verdicts(report: dict[str, Any]) -> dict[str, list[str]]:
    return {target["name"]: [check["verdict"] for check in target["checks"]] for target in report["targets"]}


def test_harnesses_that_ran_are_declared_and_run_again_to_the_same_verdict(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*CHECK, "--format", "json", "--write-targets", str(repository)]) == 0
    captured = capfd.readouterr()
    first = json.loads(captured.out)
    assert "2 targets are declared in" in captured.err
    written = tomllib.loads((repository / "gradproof.toml").read_text(encoding="utf-8"))
    assert [target["target"] for target in written["targets"]] == ["layers:Scaled", "layers:half"]
    assert run([*CHECK, "--format", "json", "--write-targets", str(repository)]) == 0
    captured = capfd.readouterr()
    again = json.loads(captured.out)
    assert "0 targets are declared" in captured.err
    assert verdicts(again) == verdicts(first)
    assert {target["harness"]["source"] for target in again["targets"]} == {"declared"}
    assert tomllib.loads((repository / "gradproof.toml").read_text(encoding="utf-8")) == written


def test_for_a_single_file_they_are_printed(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*CHECK, str(repository / "layers.py"), "--write-targets"]) == 0
    printed = capfd.readouterr().out
    tables = tomllib.loads(printed[printed.index("[[tool.gradproof.targets]]") :])
    assert len(tables["tool"]["gradproof"]["targets"]) == 2
    assert list(repository.iterdir()) == [repository / "layers.py"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--write-targets", "absent/targets.toml"], "absent"),
        (["--write-targets", "-", "--format", "json"], "both go to stdout"),
        (["--static-only", "--write-targets"], "leave --static-only out"),
        (["--write-targets=taken.toml"], "taken.toml"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anything_is_run(
    repository: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(repository.parent)
    Path("taken.toml").mkdir()
    assert run([*CHECK, str(repository), *arguments]) == 2
    captured = capfd.readouterr()
    assert said in captured.err
    assert captured.out == ""
