"""The oldest torch that a project says it runs with, from `pyproject.toml`, `setup.cfg`, `setup.py` and the like.

Read as text: a lower bound in whatever list is a promise. This module must not know rules or run anything.
"""

from __future__ import annotations

import re
from pathlib import Path

_FILES = ("pyproject.toml", "setup.cfg", "setup.py", "requirements.txt", "requirements/base.txt")
_MAX_BYTES = 1024 * 1024
# `torch>=2.1`, `torch ~= 2.1.0`, `"torch >=2.0,<3"`, `torch = "^2.1"` of Poetry, `torch==2.3`.
_BOUND = re.compile(r"""(?:^|["'\s,\[])torch(?:\[[\w,-]*\])?\s*(?:=\s*["'])?(>=|~=|==|\^|>)\s*v?(\d+)\.(\d+)""", re.M)
_SCRIPT = re.compile(r"^# /// script\s*$(.*?)^# ///\s*$", re.M | re.S)


def minimum_torch_of(root: Path) -> str | None:
    """`2.1` for a project whose root declares `torch>=2.1`; None when nothing does."""
    for name in _FILES:
        try:
            with (root / name).open("rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        found = lower_bound(text)
        if found is not None:
            return found
    return None


def lower_bound(text: str) -> str | None:
    """The smallest lower bound on torch in a text, comments left out."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    bounds = [(int(major), int(minor)) for _, major, minor in _BOUND.findall("\n".join(lines))]
    return ".".join(map(str, min(bounds))) if bounds else None


def script_bound(text: str) -> str | None:
    """The same of the metadata that a single script carries (`# /// script`)."""
    found = _SCRIPT.search(text) if "# /// script" in text else None
    if found is None:
        return None
    return lower_bound("\n".join(line.removeprefix("#") for line in found[1].splitlines()))


def release(version: str) -> tuple[int, int]:
    """`2.10` as something that sorts behind `2.9`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
