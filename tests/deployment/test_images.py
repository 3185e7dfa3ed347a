"""The Dockerfile builds from what is there, pins what it can, and leaves no image running as root."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.deployment.compose import (
    ROOT,
    copied_sources,
    dockerfile_instructions,
    dockerfile_stages,
    exec_form,
    read_compose,
)

FINAL = ["service", "worker"]


def locked(path: Path) -> dict[str, str]:
    """Name to version of a lock; every entry must have a hash."""
    text = path.read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)(?: ;[^\n]*)? \\\n +--hash=sha256:", text, re.MULTILINE))
    assert len(re.findall(r"^\w", text, re.MULTILINE)) == len(pins)
    return pins


def test_every_image_starts_from_a_pinned_base_or_another_stage() -> None:
    stages = dockerfile_stages()
    base = next(rest for word, rest in dockerfile_instructions() if word == "ARG" and rest.startswith("PYTHON_IMAGE="))
    assert re.fullmatch(r"PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim-[a-z]+", base)
    for name, instructions in stages.items():
        source = instructions[0][1].split()[0]
        assert source in {"${PYTHON_IMAGE}", *stages}, name
    assert "latest" not in (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("stage", FINAL)
def test_the_images_run_as_a_user_that_owns_nothing_of_the_program(stage: str) -> None:
    instructions = dockerfile_stages()[stage]
    users = [rest for word, rest in instructions if word == "USER"]
    assert users == ["10001:10001"]
    after = instructions[[word for word, _ in instructions].index("USER") :]
    assert not [word for word, _ in after if word in {"COPY", "ADD", "RUN"}]
    assert not [rest for word, rest in instructions if word == "COPY" and "--chown" in rest]


@pytest.mark.parametrize("stage", FINAL)
def test_the_images_start_gradproof_and_know_their_own_health(stage: str) -> None:
    instructions = dict(dockerfile_stages()[stage])
    assert exec_form(instructions["ENTRYPOINT"]) == ["gradproof"]
    started = exec_form(instructions["CMD"])
    health = exec_form(instructions["HEALTHCHECK"].partition("CMD ")[2])
    services = read_compose()["services"].values()
    assert started in [service.get("command") for service in services]
    assert ["CMD", *health] in [service.get("healthcheck", {}).get("test") for service in services]


def test_every_source_that_is_copied_exists_and_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    sources = [source for word, rest in dockerfile_instructions() if word == "COPY" for source in copied_sources(rest)]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in let_through), source
    assert set(let_through) == set(sources)


def test_every_build_target_is_a_stage() -> None:
    for name, service in read_compose()["services"].items():
        if "build" in service:
            assert service["build"]["target"] in dockerfile_stages(), name
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_the_locks_of_the_images_are_in_step_with_the_lock_of_the_repository() -> None:
    everything = locked_loosely(ROOT / "requirements.lock")
    for name in ("requirements.lock", "build.lock"):
        pins = locked(ROOT / "docker" / name)
        assert pins
        assert {package: everything.get(package) for package in pins} == pins, name


def locked_loosely(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_images_ask_for_the_torch_that_the_repository_is_built_for() -> None:
    wanted = re.search(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert wanted
    assert ("ARG", f"TORCH={wanted[1]}") in dockerfile_instructions()
