"""The text of the submitted source, read once: whoever asks what the repository speaks of asks here.

Text only: nothing is imported or run. The supervisor reads it before it forks, so that checks in processes of their own
don't each read a thousand files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 2000
_LARGEST_FILE: Final = 2 * 2**20  # bytes: what is longer was written by a program
_MOST_BYTES: Final = 64 * 2**20
_SUFFIXES: Final = (".py", ".ipynb")


@dataclass(frozen=True, slots=True)
class SourceText:
    """`path` is relative to the source root."""

    file: Path
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceTexts:
    """Sorted by path. Not `complete` where more files were there than are read: what isn't found may be there."""

    python: tuple[SourceText, ...]
    notebooks: tuple[SourceText, ...]
    complete: bool


@cache
def source_texts(source_root: Path) -> SourceTexts:
    """What can be read as text, hidden directories left out."""
    found: list[SourceText] = []
    size = 0
    for file in _files(source_root):
        if len(found) >= _MOST_FILES or size >= _MOST_BYTES:
            return _sorted(found, complete=False)
        try:
            text = file.read_text(encoding="utf-8") if file.stat().st_size <= _LARGEST_FILE else ""
        except (OSError, ValueError):
            continue
        size += len(text)
        found.append(SourceText(file, file.relative_to(source_root).as_posix(), text))
    return _sorted(found, complete=True)


def _files(source_root: Path) -> list[Path]:
    found: list[Path] = []
    for directory, names, files in os.walk(source_root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        found += [Path(directory, name) for name in sorted(files) if name.endswith(_SUFFIXES)]
    return found


def _sorted(found: list[SourceText], *, complete: bool) -> SourceTexts:
    ordered = sorted(found, key=lambda item: item.path)
    python = tuple(item for item in ordered if item.path.endswith(".py"))
    return SourceTexts(python, tuple(item for item in ordered if item.path.endswith(".ipynb")), complete)
