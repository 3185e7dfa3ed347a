"""A fixed source in the place of the file's, for one process: nothing is written, other files are as they were.

The fix comes from the analyzer, which read the file; the file belongs to the submission. Lines and columns are from 1,
columns count characters, as everywhere in Gradproof.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final

MOST_EDITS: Final = 100


class UnusableFixError(Exception):
    """The edits of a fix don't fit the file."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace what stands between two places, the end not included."""

    start: tuple[int, int]
    end: tuple[int, int]
    replacement: str


def read_edits(fix: Any) -> dict[str, list[Edit]]:
    """By path. Raises `UnusableFixError`."""
    if not isinstance(fix, list | tuple) or not 0 < len(fix) <= MOST_EDITS:
        raise UnusableFixError("a fix is a list of edits")
    edits: dict[str, list[Edit]] = {}
    for item in fix:
        try:
            edit = Edit(
                (int(item["start_line"]), int(item["start_column"])),
                (int(item["end_line"]), int(item["end_column"])),
                str(item["replacement"]),
            )
            edits.setdefault(str(item["path"]), []).append(edit)
        except (KeyError, TypeError, ValueError) as error:
            raise UnusableFixError(f"an edit lacks {error}") from error
    return edits


def fixed(text: str, edits: Iterable[Edit]) -> str:
    """`text` with all edits made. Raises `UnusableFixError` where they overlap or point beyond it."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(place: tuple[int, int]) -> int:
        line, column = place
        if not (1 <= line <= len(starts) and column >= 1 and starts[line - 1] + column - 1 <= len(text)):
            raise UnusableFixError(f"there is no place {line}:{column}")
        return starts[line - 1] + column - 1

    spans = sorted((offset(edit.start), offset(edit.end), edit.replacement) for edit in edits)
    pieces, at = [], 0
    for start, end, replacement in spans:
        if not at <= start <= end:
            raise UnusableFixError("its edits overlap")
        pieces += [text[at:start], replacement]
        at = end
    return "".join([*pieces, text[at:]])


def put_in_place(source_root: Path, fix: Any) -> None:
    """Have every later import of the files that the fix changes see them fixed. Raises `UnusableFixError`."""
    contents: dict[str, str] = {}
    for path, edits in read_edits(fix).items():
        file = (source_root / path).resolve()
        if not file.is_relative_to(source_root.resolve()):
            raise UnusableFixError(f"{path} is no file of the source")
        try:
            # Columns count characters of the text as it stands: line ends must stay what they are.
            text = file.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableFixError(f"{path} can't be read: {error}") from error
        contents[str(file)] = fixed(text, edits)
    _hook(contents)


def _hook(contents: Mapping[str, str]) -> None:
    read, stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        text = contents.get(str(Path(path).resolve()))
        return read(self, path) if text is None else text.encode()

    def path_stats(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if str(Path(path).resolve()) in contents:
            raise OSError("a fixed source has no file, so that no compiled one is taken for it")
        return stats(self, path)

    SourceFileLoader.get_data = get_data  # type: ignore[method-assign, assignment]
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]
    for name, text in contents.items():
        # Without a time of change, which is what keeps `linecache` from looking at the file again.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
