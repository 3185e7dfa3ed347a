"""Reads the lines that a report quotes.

The analyzer's paths are ours, but a check's path came out of the sandbox: whatever leaves the root, or is no plain
file, is simply not quoted. Files are decoded the way Python decodes source, so that Latin-1 and a byte order mark read
right.
"""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

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
        if self._root.is_file():
            file = self._root
        else:
            file = (self._root / relative).resolve()
        try:
            if not (file == self._root or file.is_relative_to(self._root)):
                return ()
            if not file.is_file() or file.stat().st_size > _LARGEST:
                return ()
            content = file.read_bytes()
        except OSError:
            return ()
        return tuple(_decode(content).splitlines())


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


def excerpt(
    sources: Sources,
    path: str,
    start_line: int,
    start_column: int,
    end_line: int,
    end_column: int,
    *,
    context: int = 1,
    most: int = 8,
) -> tuple[QuotedLine, ...]:
    """The lines around a place, at most `most` of the place itself, with what to underline.

    Lines and columns are 1-based, the end column is exclusive. Empty if the file can't be quoted.
    """
    lines = sources.lines(path)
    if not 1 <= start_line <= len(lines):
        return ()
    last = min(end_line, len(lines), start_line + most - 1)
    quoted = []
    for number in range(max(1, start_line - context), min(len(lines), last + context) + 1):
        text = lines[number - 1][:_LONGEST_LINE]
        mark = None
        if start_line <= number <= last:
            begin = start_column - 1 if number == start_line else len(text) - len(text.lstrip())
            end = end_column - 1 if number == end_line else len(text.rstrip())
            begin = min(max(begin, 0), len(text))
            mark = (begin, max(min(end, len(text)), begin + 1))
        quoted.append(QuotedLine(number, text, mark))
    return tuple(quoted)
