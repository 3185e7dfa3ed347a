"""Which directories an interpreter needs to see, whatever kind of interpreter it is."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import pytest

from tests.sandbox.inside import Inside
from worker.sandbox import SandboxUnavailableError
from worker.sandbox.interpreters import SYSTEM_DIRECTORIES, runtime_of


def in_system(path: Path) -> bool:
    return any(path.is_relative_to(directory) for directory in SYSTEM_DIRECTORIES)


def test_a_virtual_environment_shows_itself_and_its_base() -> None:
    visible = runtime_of(Path(sys.executable)).visible
    for needed in (Path(sys.prefix), Path(sys.base_prefix)):
        assert in_system(needed) or any(needed.is_relative_to(shown) for shown in visible)


def test_nothing_that_a_path_file_names_is_shown(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (tmp_path / "checkout").mkdir()
    (packages / "editable.pth").write_text(f"{tmp_path / 'checkout'}\n")
    assert tmp_path / "checkout" not in runtime_of(tmp_path / "venv" / "bin" / "python").visible


def test_a_home_that_is_an_environment_too_shows_its_parts_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    venv.create(tmp_path, with_pip=False, symlinks=True)
    (tmp_path / ".ssh").mkdir()
    visible = runtime_of(tmp_path / "bin" / "python").visible
    assert tmp_path not in visible
    assert {tmp_path / "bin", tmp_path / "lib", tmp_path / "pyvenv.cfg"} <= set(visible)
    assert tmp_path / ".ssh" not in visible


def test_a_link_to_an_interpreter_elsewhere_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(Path(os.path.realpath(sys.executable)))
    assert link in runtime_of(link).visible


def test_an_environment_made_by_somebody_else_runs_inside(confined: Inside, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "theirs.py").write_text("name = 'theirs'\n")
    (tmp_path / "venv").chmod(0o755)
    other = Inside(confined.launcher, tmp_path / "venv" / "bin" / "python")
    assert other.run("import theirs\nsay([theirs.name, sys.prefix])", site=True).answer == [
        "theirs",
        str(tmp_path / "venv"),
    ]


def test_a_script_that_says_nothing_is_no_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match="like a Python interpreter"):
        runtime_of(script)
