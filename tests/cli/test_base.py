"""What `--base` tells of the files: which have changed, so that their targets are run early."""

from __future__ import annotations

import subprocess
from pathlib import Path

from api.cli.base import Base, base_of


def git(directory: Path, *words: str) -> None:
    command = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    subprocess.run(command, check=True, capture_output=True)


def test_files_that_differ_from_the_ref_have_changed(tmp_path: Path) -> None:
    tree = {"same.py": b"a = 1\n", "other.py": b"a = 1\n", "data.txt": b"old"}
    for name, content in tree.items():
        (tmp_path / name).write_bytes(content)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    now = {**tree, "other.py": b"a = 2\n", "new.py": b"", "data.txt": b"new"}
    assert base_of("HEAD", tmp_path).changed(now) == {"other.py", "new.py"}


def test_a_report_knows_no_files(tmp_path: Path) -> None:
    assert Base(frozenset({"a"})).changed({"a.py": b""}) is None
