"""Reads the lines that a report quotes, from files and from the cells of notebooks.

The analyzer's paths are ours, but a check's path came out of the sandbox: whatever leaves the root, or is no plain
file, is simply not quoted. Files are decoded the way Python decodes source, so that Latin-1 and a byte order mark read
right.
"""

from __future__ import annotations

import io
import re
import tokenize
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from analyzer.findings import Region
from analyzer.notebooks import is_notebook, read_notebook, source_lines
from analyzer.source import UnreadableSourceError
from services.reports.document import Placed

# Larger files are not quoted: the analyzer refuses them too.
_LARGEST = 20 * 2**20
# A minified line would push everything else off the screen.
_LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class QuotedCell:
    """The lines of a code cell, and the line of the notebook's file that each of them stands on."""

    lines: tuple[str, ...]
    file_lines: tuple[int, ...]


class Sources(Protocol):
    """Where quoted lines come from."""

    def lines(self, path: str) -> tuple[str, ...]:
        """The lines of a file without their ends; empty if it can't be quoted."""
        ...

    def cells(self, path: str) -> Mapping[int, QuotedCell]:
        """The code cells of a notebook by their numbers; empty if it can't be quoted."""
        ...


class NoSources:
    """Quotes nothing: for readers that have the report alone."""

    def lines(self, path: str) -> tuple[str, ...]:  # noqa: ARG002 - the signature is that of the protocol
        return ()

    def cells(self, path: str) -> Mapping[int, QuotedCell]:  # noqa: ARG002 - the same
        return {}


class _ReadSources(ABC):
    """Each file is read once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, ...]] = {}
        self._notebooks: dict[str, Mapping[int, QuotedCell]] = {}

    @abstractmethod
    def _load(self, path: str) -> bytes | None:
        """The content of a file; None if it can't be quoted."""

    def lines(self, path: str) -> tuple[str, ...]:
        if path not in self._read:
            content = self._load(path)
            self._read[path] = () if content is None else _lines(content)
        return self._read[path]

    def cells(self, path: str) -> Mapping[int, QuotedCell]:
        if path not in self._notebooks:
            self._notebooks[path] = _cells("\n".join(self.lines(path))) if is_notebook(path) else {}
        return self._notebooks[path]


class DirectorySources(_ReadSources):
    """Quotes the files below a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root.resolve()

    def _load(self, path: str) -> bytes | None:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or "\x00" in path:
            return None
        file = (self._root / relative).resolve()
        try:
            if not file.is_relative_to(self._root) or not file.is_file() or file.stat().st_size > _LARGEST:
                return None
            return file.read_bytes()
        except OSError:
            return None


class TreeSources(_ReadSources):
    """Quotes the files of a tree in memory or in a spool: relative POSIX paths and contents."""

    def __init__(self, tree: Mapping[str, bytes]) -> None:
        super().__init__()
        self._tree = tree

    def _load(self, path: str) -> bytes | None:
        return self._tree.get(path)


def _cells(text: str) -> Mapping[int, QuotedCell]:
    try:
        notebook = read_notebook(text)
    except UnreadableSourceError:
        return {}
    file_lines = source_lines(text)
    return {cell.number: QuotedCell(cell.lines, file_lines.get(cell.number, ())) for cell in notebook.cells}


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
    """A line of an excerpt. `mark` is the half-open range of 0-based columns to underline, if any.

    `start` is how many characters of the line in the file are missing before `text`.
    """

    number: int
    text: str
    mark: tuple[int, int] | None = None
    start: int = 0


def excerpt(
    sources: Sources, region: Region, *, context: int = 1, most: int = 8, longest: int = _LONGEST_LINE
) -> tuple[QuotedLine, ...]:
    """The lines around a place, at most `most` of the place itself, with what to underline.

    Lines are cut to `longest` characters around what is underlined. Empty if the file can't be quoted.
    """
    lines = lines_around(sources, region)
    if not 1 <= region.start_line <= len(lines):
        return ()
    last = min(region.end_line, len(lines), region.start_line + most - 1)
    quoted = []
    for number in range(max(1, region.start_line - context), min(len(lines), last + context) + 1):
        text = lines[number - 1]
        mark = None
        if region.start_line <= number <= last:
            begin = region.start_column - 1 if number == region.start_line else len(text) - len(text.lstrip())
            end = region.end_column - 1 if number == region.end_line else len(text.rstrip())
            begin = min(max(begin, 0), len(text))
            mark = (begin, max(min(end, len(text)), begin + 1))
        quoted.append(cut(QuotedLine(number, text, mark), longest))
    return tuple(quoted)


def cut(line: QuotedLine, limit: int) -> QuotedLine:
    """The line in at most `limit` characters, cut around the mark, with an ellipsis where something is missing."""
    text = line.text
    if len(text) <= limit:
        return line
    if line.mark is None:
        return QuotedLine(line.number, text[: limit - 1] + "…")
    begin, end = line.mark
    # A third of what is left stands before the mark: what follows it is read on, what precedes it has been.
    start = max(0, min(begin - max(limit - (end - begin), 0) // 3, len(text) - limit))
    if end < limit - 1:
        start = 0
    piece = text[start : start + limit]
    if start:
        piece = "…" + piece[1:]
    if start + limit < len(text):
        piece = piece[:-1] + "…"
    return shifted(QuotedLine(line.number, piece, (begin, end)), start)


def shifted(line: QuotedLine, start: int) -> QuotedLine:
    """The line with its mark, which counts from the beginning in the file, moved to where its text begins."""
    begin, end = line.mark or (0, 1)
    first, last = (1 if start else 0), len(line.text)
    begin, end = (min(max(column - start, first), last) for column in (begin, end))
    return QuotedLine(line.number, line.text, (begin, max(end, begin + 1)), start)


def lines_around(sources: Sources, region: Region) -> tuple[str, ...]:
    """The lines that a region counts: those of its file, or of its cell."""
    if not region.cell:
        return sources.lines(region.path)
    cell = sources.cells(region.path).get(region.cell)
    return () if cell is None else cell.lines


def region_of(place: Placed) -> Region:
    """The place of a finding as a region."""
    return Region(place.path, place.start_line, place.start_column, place.end_line, place.end_column, place.cell or 0)


def shown_region(sources: Sources, place: Placed) -> Region:
    """The same, and the whole line for a place that has no columns: that of a failing check."""
    region = region_of(place)
    has_columns = (region.start_line, region.start_column) != (region.end_line, region.end_column)
    return region if has_columns or region.cell else line_region(sources, region.path, region.start_line)


def file_region(sources: Sources, region: Region) -> Region:
    """The same place for readers that know files only: a line of a cell is a whole line of the notebook's file."""
    if not region.cell:
        return region
    cell = sources.cells(region.path).get(region.cell)
    if cell is None or not 1 <= region.start_line <= len(cell.file_lines):
        return line_region(sources, region.path, 1)
    return line_region(sources, region.path, cell.file_lines[region.start_line - 1])


def line_region(sources: Sources, path: str, line: int) -> Region:
    """A whole line without its indentation as a region; two columns wide if the line can't be quoted."""
    lines = sources.lines(path)
    text = lines[line - 1] if 1 <= line <= len(lines) else ""
    begin = len(text) - len(text.lstrip()) + 1
    return Region(path, line, begin, line, max(len(text.rstrip()) + 1, begin + 1))
