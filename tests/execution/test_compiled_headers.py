"""Inductor's header is made once, in the background, by one process at a time, and lent to sandboxes read-only."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from services.settings import Settings
from worker.execution.command import probe_command
from worker.execution.compiled_headers import compiled_headers
from worker.sandbox import open_sandbox
from worker.sandbox.model import Limits

MAKES = (
    'd="$TMPDIR/torchinductor_x/precompiled_headers"; mkdir -p "$d/locks"; echo "$0" > "$d/a.h"; echo > "$d/a.h.gch"'
)
PATIENCE_S = 60.0


def interpreter(tmp_path: Path, script: str) -> Path:
    """Something that is started as an interpreter would be, and counts how often."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho >> "{tmp_path}/started"\n{script}\n')
    path.chmod(0o755)
    return path


def made(python: Path, home: Path) -> Path | None:
    """What comes of it once the process that makes them is over."""
    end = time.monotonic() + PATIENCE_S
    assert compiled_headers(python, home) is None
    while time.monotonic() < end:
        found = compiled_headers(python, home)
        if found is not None or not [*home.glob(".making-*")]:
            return found
    raise AssertionError("it does not end")


def test_they_are_made_once_and_kept(tmp_path: Path) -> None:
    python, home = interpreter(tmp_path, MAKES), tmp_path / "home"
    place = made(python, home)
    assert place is not None
    assert sorted(path.name for path in place.iterdir()) == ["a.h", "a.h.gch"]
    assert [*home.iterdir()] == [place], "nothing else is left behind"
    assert compiled_headers(python, home) == place
    assert (tmp_path / "started").read_text().count("\n") == 1


def test_another_torch_has_others(tmp_path: Path) -> None:
    python, home = interpreter(tmp_path, MAKES), tmp_path / "home"
    place = made(python, home)
    version = tmp_path / "lib/python3.11/site-packages/torch/version.py"
    version.parent.mkdir(parents=True)
    version.write_text("2.13.0")
    assert made(python, home) not in (None, place)


def test_what_fails_is_not_tried_again_by_this_process(tmp_path: Path) -> None:
    python, home = interpreter(tmp_path, f"{MAKES}; exit 1"), tmp_path / "home"
    assert made(python, home) is None
    assert compiled_headers(python, home) is None
    assert (tmp_path / "started").read_text().count("\n") == 1


def test_while_another_process_makes_them_none_is_started(tmp_path: Path) -> None:
    python, home = interpreter(tmp_path, MAKES), tmp_path / "home"
    home.mkdir()
    turn = os.open(home, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    try:
        assert compiled_headers(python, home) is None
    finally:
        os.close(turn)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("home", ["/proc/gradproof-headers", "/dev/null/headers"])
def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, home: str) -> None:
    assert compiled_headers(interpreter(tmp_path, MAKES), Path(home)) is None


def test_inside_a_sandbox_they_lie_where_inductor_looks_and_cannot_be_changed(tmp_path: Path) -> None:
    headers, source = tmp_path / "headers", tmp_path / "source"
    for directory in (headers, source):
        directory.mkdir()
    (headers / "marker.h").write_text("lent")
    (source / "a.py").write_text(
        "def f(x):\n"
        "    place = '/tmp/torchinductor_sandbox/precompiled_headers/marker.h'\n"
        "    try:\n"
        "        open(place, 'w').write('changed')\n"
        "    except OSError:\n"
        "        pass\n"
        "    assert open(place).read() == 'lent'\n"
        "    return x * 2\n"
    )
    target = {
        "name": "a:f", "kind": "function", "path": "a.py", "line": 1, "import_root": "", "module": "a",
        "qualname": "f", "guessed": False,
    }  # fmt: skip
    asked: dict[str, object] = {
        "limits": {"harness_s": 30, "check_s": 60, "target_s": 120, "inductor_s": 0},
        "tolerances": {},
        "batch": [
            {
                "job": "j", "target": target, "declared": None, "mined": [], "hypotheses": [],
                "checks": ["compile_equivalence"],
            }
        ],
    }  # fmt: skip
    launcher = open_sandbox(Settings(data_dir=tmp_path / "data"))
    command = probe_command(source, Path(sys.executable), launcher.mode, asked, headers=headers)
    lines: list[dict[str, Any]] = []
    launcher.run(command, Limits(), lambda line: lines.append(json.loads(line)), lambda: False)
    (said,) = [line for line in lines if line["type"] == "harness"]
    assert said["harness"] is not None, said
    assert (headers / "marker.h").read_text() == "lent"
