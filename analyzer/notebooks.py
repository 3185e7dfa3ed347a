"""Jupyter notebooks as source text: the code cells, one after the other, as one module.

What IPython understands and Python does not (magics, shell commands, help) becomes blanks or an empty tuple of the same
width, so that every line and column stays. Cells are numbered from 1 and all of them count, those of text too, as
notebook editors and other linters do. This module must not know rules or findings beyond their regions.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzer.findings import Region
from analyzer.newer_syntax import logical_line_end
from analyzer.source import InvalidSyntaxError, UnreadableSourceError, normalise, parse

SUFFIX = ".ipynb"
# A notebook carries its pictures along: up to this many times the size of a source file is code enough.
SIZE_FACTOR = 16
# Of the cell magics only these run what stands below them as Python in the notebook's own scope.
_PYTHON_CELL_MAGICS = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "pypy", "debug"})
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CELL_MAGIC = re.compile(r"\s*%%(?P<name>\w*)[^\n]*")
_COMMAND = re.compile(r"(?P<kept>[ \t]*)(?:[%!?]|[\w.*]+(?:\[[^\]\n]*\])?\?{1,2}[ \t]*$)", re.MULTILINE)
_ASSIGNED_MAGIC = re.compile(r"(?P<kept>[\w.,\[\]'\" \t]*=[ \t]*)[%!]")
_MAY_HOLD_MAGICS = re.compile(r"^[ \t]*[%!?]|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell: its number in the notebook, the line of the module that it begins on, and its lines as written."""

    number: int
    first_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokenCell:
    """A cell that is no Python: the place in the module, and the reason."""

    line: int
    column: int
    reason: str


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code of a notebook. `text` is the module that its cells make up, without those that are broken."""

    text: str
    cells: tuple[CodeCell, ...]
    broken: tuple[BrokenCell, ...] = ()

    def cell_at(self, line: int) -> CodeCell | None:
        """The cell that a line of the module belongs to."""
        position = bisect_right(self.cells, line, key=lambda cell: cell.first_line) - 1
        return self.cells[position] if position >= 0 else None

    def locate(self, region: Region) -> Region:
        """A region of the module as one of a cell."""
        cell = self.cell_at(region.start_line)
        if cell is None:
            return region
        shift = cell.first_line - 1
        return replace(region, start_line=region.start_line - shift, end_line=region.end_line - shift, cell=cell.number)


def is_notebook(path: str) -> bool:
    """Whether a path is that of a notebook."""
    return path.endswith(SUFFIX)


def read_notebook(text: str) -> Notebook:
    """The notebook in a JSON document. One in another language has no cells.

    Raises UnreadableSourceError for what is no notebook.
    """
    document = _document(text)
    if not _is_python(document):
        return Notebook("", ())
    cells: list[CodeCell] = []
    pieces: list[str] = []
    line = 1
    for number, cell in enumerate(_cells(document), 1):
        source = _source(cell, number)
        if source is None:
            continue
        source = normalise(source).rstrip("\n")
        lines = source.split("\n")
        cells.append(CodeCell(number, line, tuple(lines)))
        pieces.append(_python(source))
        line += len(lines)
    return _without_broken(pieces, tuple(cells))


def source_lines(text: str) -> dict[int, tuple[int, ...]]:
    """For each code cell, the line of the JSON document that each line of the cell stands on.

    `text` is a document that `read_notebook` accepts. Notebooks are written with a string a line, but need not be.
    """
    found: dict[int, _FileLines] = {}
    stack: list[list[Any]] = []  # of each open bracket, the key or index that is at hand, and whether it is an object
    at_key = False
    line, counted = 1, 0
    for match in _JSON_TOKEN.finditer(text):
        word = match[0]
        if word in "{[":
            at_key = word == "{"
            stack.append(["", True] if at_key else [0, False])
        elif word in "}]":
            stack.pop()
            at_key = False
        elif word == ",":
            at_key = bool(stack) and stack[-1][1]
            if stack and not at_key:
                stack[-1][0] += 1
        elif word == ":":
            at_key = False
        elif at_key:
            stack[-1][0] = word
        elif len(stack) in (3, 4) and stack[0][0] == '"cells"' and stack[2][0] == '"source"' and word[0] == '"':
            line += text.count("\n", counted, match.start())
            counted = match.start()
            found.setdefault(stack[1][0] + 1, _FileLines()).add(json.loads(word), line)
    return {number: tuple(lines.numbers) for number, lines in found.items()}


class _FileLines:
    """Where the lines of one cell stand, string by string."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._at_line_start = True

    def add(self, text: str, line: int) -> None:
        count = text.count("\n") + self._at_line_start
        self._at_line_start = text.endswith("\n")
        self.numbers.extend([line] * (count - self._at_line_start))


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableSourceError(f"the notebook is not valid JSON: {error.msg}", error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise UnreadableSourceError(f"the notebook can't be read: {error}") from error
    if not isinstance(document, dict):
        raise UnreadableSourceError("the notebook is no JSON object")
    return document


def _is_python(document: Mapping[str, Any]) -> bool:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return True
    for key, field in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key)
        language = part.get(field) if isinstance(part, dict) else None
        if isinstance(language, str):
            return language.lower() in ("python", "ipython")
    return True


def _cells(document: Mapping[str, Any]) -> Sequence[Any]:
    cells = document.get("cells")
    if cells is None:  # before version 4
        sheets = document.get("worksheets")
        first = sheets[0] if isinstance(sheets, list) and sheets else None
        cells = first.get("cells") if isinstance(first, dict) else None
    if not isinstance(cells, list):
        raise UnreadableSourceError("the notebook has no list of cells")
    return cells


def _source(cell: object, number: int) -> str | None:
    """The text of a code cell in Python; None for any other cell."""
    if not isinstance(cell, dict):
        raise UnreadableSourceError(f"cell {number} of the notebook is no JSON object")
    metadata = cell.get("metadata")
    vscode = metadata.get("vscode") if isinstance(metadata, dict) else None
    language = vscode.get("languageId") if isinstance(vscode, dict) else None
    if cell.get("cell_type") != "code" or language not in (None, "python"):
        return None
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list) and all(isinstance(part, str) for part in source):
        return "".join(source)
    if not isinstance(source, str):
        raise UnreadableSourceError(f"cell {number} of the notebook has no text")
    return source


def _python(source: str) -> str:
    """The source of a cell with everything blanked that only IPython understands."""
    begin = 0
    while (magic := _CELL_MAGIC.match(source, begin)) is not None:
        if magic["name"] not in _PYTHON_CELL_MAGICS:
            return "\n" * source.count("\n")
        begin = magic.end()
    if not _MAY_HOLD_MAGICS.search(source, begin):
        return "\n" * source.count("\n", 0, begin) + source[begin:]
    pieces = ["\n" * source.count("\n", 0, begin)]
    at = begin
    while at < len(source):
        assigned = _ASSIGNED_MAGIC.match(source, at)
        command = assigned or _COMMAND.match(source, at)
        if command is None:
            end = logical_line_end(source, at)
            pieces.append(source[at:end])
        else:
            end = _end_of_command(source, at)
            pieces.append(_blanked(source[at:end], command["kept"]))
        at = end
    return "".join(pieces)


def _end_of_command(source: str, at: int) -> int:
    """Behind the line at `at`, and those that it is continued on."""
    while True:
        end = source.find("\n", at)
        if end < 0:
            return len(source)
        if source[end - 1] != "\\":
            return end + 1
        at = end + 1


def _blanked(command: str, kept: str) -> str:
    """A command as an expression without effect, as long as the first of its lines."""
    first, newline, rest = command.partition("\n")
    instead = "()" if len(first) - len(kept) > 1 else "0"
    return f"{kept}{instead}".ljust(len(first)) + newline + "\n" * rest.count("\n")


def _without_broken(pieces: Sequence[str], cells: tuple[CodeCell, ...]) -> Notebook:
    """One cell that is no Python must not take the others along."""
    text = "".join(f"{piece}\n" for piece in pieces)
    try:
        parse(text)
    except (InvalidSyntaxError, UnreadableSourceError):
        sound: list[str] = []
        broken: list[BrokenCell] = []
        for piece, cell in zip(pieces, cells, strict=True):
            try:
                parse(piece)
            except (InvalidSyntaxError, UnreadableSourceError) as error:
                column = error.column if isinstance(error, InvalidSyntaxError) else 1
                broken.append(BrokenCell(cell.first_line + error.line - 1, column, error.reason))
                sound.append("\n" * piece.count("\n"))
            else:
                sound.append(piece)
        text = "".join(f"{piece}\n" for piece in sound)
        return Notebook(text, cells, tuple(broken))
    return Notebook(text, cells)
