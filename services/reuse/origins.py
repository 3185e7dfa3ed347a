"""Whose code an analysis runs: what one run leaves behind may be given to another run of the same origin only.

Whoever can submit code under an origin can write what later runs of it start from. So a fork, which has another URL,
never writes for the repository that it was made from, nor does a branch or a pull request fetched from the same URL
write for the default branch; it may start from what the default branch left. This module must not know what is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Origin:
    """`own` is written, and read first; `base` is read where nothing of its own is there. Both are digests."""

    own: str
    base: str | None = None


def origin_of_analysis(
    project: str | None, *, url: str | None, ref: str | None, snapshot: str
) -> Origin:  # fmt: skip
    """Of a submission. `url` is that of git; what was uploaded shares with the very same content alone.

    Uploads of one project are as often those of forks as of its own branches, and nothing tells them apart.
    """
    if url is None:
        return Origin(_digest("upload", project, snapshot))
    default = _digest("git", project, url, None)
    return Origin(default) if ref is None else Origin(_digest("git", project, url, ref), default)


def origin_of_directory(directory: Path) -> Origin:
    """Of a directory of one's own: where it lies, and what is checked out there (a branch, or one commit)."""
    place = directory.resolve()
    return Origin(_digest("directory", str(place), _checked_out(place)))


def _checked_out(directory: Path) -> str:
    """The content of git's HEAD; empty where there is none, as in a linked working tree, which has its own place."""
    for parent in (directory, *directory.parents):
        if (parent / ".git").is_dir():
            with suppress(OSError):
                descriptor = os.open(parent / ".git" / "HEAD", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as file:
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        return file.read(_HEAD_BYTES).decode("utf-8", "replace")
            return ""
    return ""


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
