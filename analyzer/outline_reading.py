"""The outline of a file by itself, for those who want to know what it defines and not what is wrong with it.

This module must not know targets or rules.
"""

from __future__ import annotations

from pathlib import Path

from analyzer.context import FileContext
from analyzer.outline import Outline, outline_of
from analyzer.source import InvalidSyntaxError, UnreadableSourceError, decode, parse


def read_outline(root: Path, path: str, *, max_bytes: int) -> Outline | None:
    """None for a file that can't be read."""
    try:
        text = decode((root / path).read_bytes(), max_bytes=max_bytes)
        return outline_of(FileContext(path=path, module="", text=text, tree=parse(text)))
    except (OSError, UnreadableSourceError, InvalidSyntaxError):
        return None
