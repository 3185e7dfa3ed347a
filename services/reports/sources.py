"""Reads the lines that a report quotes.

The analyzer's paths are ours, but a check's path came out of the sandbox: whatever leaves the root, or is no plain
file, is simply not quoted. Files are decoded the way Python decodes source, so that Latin-1 and a byte order mark read
right.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from analyzer.findings import Region
from services.reports.document import FindingInfo, RelatedInfo

# Larger files are not quoted: the analyzer refuses them too.
_LARGEST = 20 * 2**20
# A minified line would push everything else off the screen.
_LONGEST_LINE = 400


class Sources(Protocol):
    """Where quoted lines come from."""

    def lines(self, path: str) -> tuple[str, ...]:
        """The lines of a file without their ends; empty if it can't be quoted."""
        ...


class NoSources:
    """Quotes nothing: for readers that have the report alone."""

    def lines(self, path: str) -> tuple[str, ...]:  # noqa: ARG002 - the signature is that of the protocol
        return ()


class DirectorySources:
    """Quotes the files below a directory, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._read: dict[str, tuple[str, ...]] = {}

    def lines(self, path: str) -> tuple[str, ...]:
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def _load(self, path: str) -> tuple[str, ...]:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or "\x00" in path:
            return ()
        file = (self._root / relative).resolve()
        try:
            if not file.is_relative_to(self._root) or not file.is_file() or file.stat().st_size > _LARGEST:
                return ()
            content = file.read_bytes()
        except OSError:
            return ()
        return _lines(content)


class TreeSources:
    """Quotes the files of a tree in memory or in a spool: relative POSIX paths and contents."""

    def __init__(self, tree: Mapping[str, bytes]) -> None:
        self._tree = tree
        self._read: dict[str, tuple[str, ...]] = {}

    def lines(self, path: str) -> tuple[str, ...]:
        if path not in self._tree:
            return ()
        if path not in self._read:
            self._read[path] = _lines(self._tree[path])
        return self._read[path]


def _lines(content: bytes) -> tuple[str, ...]:
    # Not splitlines(), which also splits at form feeds and U+2028, where Python's own line numbers stand still.
    return tuple(re.split(r"\r\n|\n|\r", _decode(content)))


def _decode(content: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return content.decode("latin-1")


@dataclass(frozen=True, slots=True)
class QuotedLine:
    """A line of an excerpt. `mark` is the half-open range of 0-based columns to underline, if any."""

    number: int
    text: str
    mark: tuple[int, int] | None = None


def excerpt(sources: Sources, region: Region, *, context: int = 1, most: int = 8) -> tuple[QuotedLine, ...]:
    """The lines around a place, at most `most` of the place itself, with what to underline.

    Empty if the file can't be quoted.
    """
    lines = sources.lines(region.path)
    if not 1 <= region.start_line <= len(lines):
        return ()
    last = min(region.end_line, len(lines), region.start_line + most - 1)
    quoted = []
    for number in range(max(1, region.start_line - context), min(len(lines), last + context) + 1):
        text = lines[number - 1][:_LONGEST_LINE]
        mark = None
        if region.start_line <= number <= last:
            begin = region.start_column - 1 if number == region.start_line else len(text) - len(text.lstrip())
            end = region.end_column - 1 if number == region.end_line else len(text.rstrip())
            begin = min(max(begin, 0), len(text))
            mark = (begin, max(min(end, len(text)), begin + 1))
        quoted.append(QuotedLine(number, text, mark))
    return tuple(quoted)


def region_of(place: FindingInfo | RelatedInfo) -> Region:
    """The place of a finding as a region."""
    return Region(place.path, place.start_line, place.start_column, place.end_line, place.end_column)


def line_region(sources: Sources, path: str, line: int) -> Region:
    """A whole line without its indentation as a region; two columns wide if the line can't be quoted."""
    lines = sources.lines(path)
    text = lines[line - 1] if 1 <= line <= len(lines) else ""
    begin = len(text) - len(text.lstrip()) + 1
    return Region(path, line, begin, line, max(len(text.rstrip()) + 1, begin + 1))
