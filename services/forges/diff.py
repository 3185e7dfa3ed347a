"""Which lines of a file a pull request added: only there does a forge take a comment, and only there is it wanted.

A patch comes from a forge, which gives none for large and binary files; `computed_patch` makes one from two contents,
and `patched` fills in what a forge left out from two directories: all else here is pure. Lines are counted as git
counts them, by line feeds. A patch is untrusted text: what can't be read of it adds no lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath
from typing import Final

from services.forges.values import ChangedFile

_HEADER: Final = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_CONTEXT: Final = 3
# Beyond this size difflib takes too long: 10,000 lines with every tenth changed take 1.2 s, 20,000 take 5 s.
_LARGEST: Final = 2 * 2**20
_MOST_LINES: Final = 10_000
# git takes a file for binary if there is a NUL among its first bytes.
_LOOKED_AT: Final = 8_000


@dataclass(frozen=True, slots=True)
class FileLines:
    """The lines of a file, as it is at the head, that stand in its diff, from 1. `hunks` are first and last lines."""

    added: frozenset[int] = frozenset()
    context: frozenset[int] = frozenset()
    hunks: tuple[tuple[int, int], ...] = ()

    def all_added(self, first: int, last: int) -> bool:
        """Whether the lines from first to last are all added, in one hunk: a comment may span them."""
        return any(begin <= first and last <= end for begin, end in self.hunks) and all(
            line in self.added for line in range(first, last + 1)
        )

    def first_added(self, first: int, last: int) -> int | None:
        """The first added line from first to last; None if there is none."""
        return min((line for line in self.added if first <= line <= last), default=None)


@dataclass(frozen=True, slots=True)
class PullRequestDiff:
    """The files of a pull request by their paths at the head. `unknown` have no patch, for a reason that is told."""

    files: Mapping[str, ChangedFile]
    lines: Mapping[str, FileLines]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def of(self, path: str) -> FileLines:
        """The lines of a file in the diff; none if the pull request does not touch it, or nobody knows."""
        return self.lines.get(path, FileLines())


def read_diff(files: Iterable[ChangedFile]) -> PullRequestDiff:
    """The lines that each file's patch adds."""
    by_path = {file.path: file for file in files}
    lines, unknown = {}, {}
    for path, file in by_path.items():
        if file.patch is not None:
            lines[path] = read_patch(file.patch)
        elif file.status not in {"removed", "unchanged"}:
            unknown[path] = "the forge gives no patch of it: it is too large, binary, or only its name or mode changed"
    return PullRequestDiff(files=by_path, lines=lines, unknown=unknown)


def read_patch(patch: str) -> FileLines:
    """The lines of the new side of one file's patch, with or without what stands before its first hunk.

    By the counts in the headers, not by looks: an added line may read `+++ b/x` or `@@ -1 +1 @@`.
    """
    added: set[int] = set()
    context: set[int] = set()
    hunks: list[tuple[int, int]] = []
    lines = iter(patch.split("\n"))
    for line in lines:
        header = _HEADER.match(line)
        if header is not None:
            old, new = _count(header[2]), _count(header[4])
            first = int(header[3])
            last = _read_hunk(lines, old=old, new=new, first=first, added=added, context=context)
            if last >= first:
                hunks.append((first, last))
    return FileLines(frozenset(added), frozenset(context), tuple(hunks))


def _count(text: str | None) -> int:
    return 1 if text is None else int(text)


def _read_hunk(lines: Iterator[str], *, old: int, new: int, first: int, added: set[int], context: set[int]) -> int:
    """Read the lines of a hunk; the last line of the new side that was in it."""
    number = first
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is None:
            break
        sign = line[:1]
        if sign == "+" and new > 0:
            added.add(number)
            number, new = number + 1, new - 1
        elif sign == "-" and old > 0:
            old -= 1
        elif sign in {" ", ""} and old > 0 and new > 0:  # some tools cut the blank of an empty line
            context.add(number)
            number, old, new = number + 1, old - 1, new - 1
        elif sign != "\\":  # "\ No newline at end of file" counts on neither side
            break
    return number - 1


def computed_patch(before: bytes | None, after: bytes | None) -> str | None:
    """The hunks from one content to another (None: no such file); None if it is binary or too large to compare."""
    old, new = before or b"", after or b""
    if max(len(old), len(new)) > _LARGEST or b"\0" in old[:_LOOKED_AT] or b"\0" in new[:_LOOKED_AT]:
        return None
    old_lines, new_lines = _lines(old), _lines(new)
    if max(len(old_lines), len(new_lines)) > _MOST_LINES:
        return None
    return "\n".join(_hunks(old_lines, new_lines))


def _lines(content: bytes) -> list[str]:
    """Lines with their ends, so that one without an end differs from one with."""
    text = content.decode("utf-8", "replace")
    return [*(f"{line}\n" for line in text.split("\n")[:-1]), *([tail] if (tail := text.rpartition("\n")[2]) else [])]


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        begin, end = group[0], group[-1]
        yield f"@@ -{_range(begin[1], end[2])} +{_range(begin[3], end[4])} @@"
        for kind, old_begin, old_end, new_begin, new_end in group:
            if kind == "equal":
                yield from _signed(" ", old[old_begin:old_end])
                continue
            yield from _signed("-", old[old_begin:old_end])
            yield from _signed("+", new[new_begin:new_end])


def _range(begin: int, end: int) -> str:
    """A range as a header has it: an empty one is named by the line before."""
    length = end - begin
    return f"{begin + 1 if length else begin},{length}"


def _signed(sign: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield sign + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def patched(files: Iterable[ChangedFile], *, base: Path, head: Path) -> tuple[ChangedFile, ...]:
    """The files, with patches computed from two directories where the forge gave none."""
    return tuple(
        file if file.patch is not None else replace(file, patch=_patch_between(file, base, head)) for file in files
    )


def _patch_between(file: ChangedFile, base: Path, head: Path) -> str | None:
    if file.status in {"removed", "unchanged"}:
        return None
    after = _read(head, file.path)
    before = None if file.status == "added" else _read(base, file.previous_path or file.path)
    if after is None or (before is None and file.status != "added"):
        return None  # a snapshot need not hold every file
    return computed_patch(before, after) or None


def _read(root: Path, path: str) -> bytes | None:
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts or "\0" in path:
        return None
    file = root / relative
    try:
        if file.is_symlink() or not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
            return None
        return file.read_bytes()
    except OSError:
        return None
