"""Runs server programs as an ordinary user, whoever runs the tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NOBODY = 65_534


def unprivileged(home: Path) -> list[str]:
    """The beginning of a command line that drops root's rights and environment; `home` must be the user's own."""
    environment = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={home}", "LC_ALL=C"]
    if os.geteuid() != 0:
        return environment
    setpriv = shutil.which("setpriv")
    assert setpriv is not None, "setpriv (util-linux) is needed to start servers as root"
    return [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *environment]


def own_directory(directory: Path) -> Path:
    """Make a directory that the unprivileged user owns. Its parents have to be traversable."""
    directory.mkdir(mode=0o700, parents=True)
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    return directory
