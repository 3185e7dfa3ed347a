"""Reads unified diffs: which lines a reviewer can comment on, and where a line of an older commit is now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Side = Literal["LEFT", "RIGHT"]

_HEADER: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class DiffLine:
    """One line below a hunk's header: its number before and after the change (None where it isn't there)."""

    left: int | None
    right: int | None
    text: str

    def number(self, side: Side) -> int | None:
        return self.left if side == "LEFT" else self.right


@dataclass(frozen=True)
class Hunk:
    header: str
    lines: tuple[DiffLine, ...]

    def index(self, line: int, side: Side) -> int | None:
        """Where that line stands in this hunk, counted from 0."""
        return next((place for place, each in enumerate(self.lines) if each.number(side) == line), None)


@dataclass(frozen=True)
class FileDiff:
    """The change of one file. `patch` is None for binary files and for changes of the mode or the name alone."""

    path: str
    previous_path: str | None
    status: Literal["added", "removed", "modified", "renamed", "changed"]
    blob: str
    patch: str | None
    hunks: tuple[Hunk, ...] = field(default=(), repr=False)

    @property
    def additions(self) -> int:
        return sum(line.left is None for hunk in self.hunks for line in hunk.lines)

    @property
    def deletions(self) -> int:
        return sum(line.right is None for hunk in self.hunks for line in hunk.lines)

    def hunk(self, line: int, side: Side) -> Hunk | None:
        """The hunk in which that line stands."""
        return next((hunk for hunk in self.hunks if hunk.index(line, side) is not None), None)

    def position(self, line: int, side: Side) -> int | None:
        """GitHub's old `position`: lines below the first `@@`, where later headers count as lines too."""
        before = 0
        for hunk in self.hunks:
            place = hunk.index(line, side)
            if place is not None:
                return before + place + 1
            before += len(hunk.lines) + 1
        return None

    def excerpt(self, line: int, side: Side) -> str:
        """The hunk's header and its lines down to that one."""
        hunk = self.hunk(line, side)
        if hunk is None:
            return ""
        place = hunk.index(line, side) or 0
        return "\n".join([hunk.header, *(each.text for each in hunk.lines[: place + 1])])


def parse_hunks(patch: str) -> tuple[Hunk, ...]:
    """The hunks of one file's patch (which begins with its first `@@`)."""
    return tuple(_hunks(patch.split("\n")))


def _hunks(lines: list[str]) -> Iterator[Hunk]:
    place = 0
    while place < len(lines):
        match = _HEADER.match(lines[place])
        if match is None:
            place += 1
            continue
        header, found = lines[place], []
        left, right = int(match[1]), int(match[3])
        left_end, right_end = left + int(match[2] or 1), right + int(match[4] or 1)
        place += 1
        # By the header's counts, not by looks: a removed line `-- x` looks like a file header.
        while place < len(lines) and (left < left_end or right < right_end or lines[place].startswith("\\")):
            text = lines[place]
            place += 1
            if text.startswith("\\"):
                continue  # "No newline at end of file"
            is_left, is_right = not text.startswith("+"), not text.startswith("-")
            found.append(DiffLine(left if is_left else None, right if is_right else None, text))
            left, right = left + is_left, right + is_right
        yield Hunk(header, tuple(found))


def moved_line(hunks: tuple[Hunk, ...], line: int) -> int | None:
    """Where a line of the old file is in the new one; None if the change touched it. `hunks` is of old against new."""
    shift = 0
    for hunk in hunks:
        numbers = [each.left for each in hunk.lines if each.left is not None]
        if numbers and numbers[0] <= line <= numbers[-1]:
            return next((each.right for each in hunk.lines if each.left == line), None)
        # A hunk without old lines says behind which old line it was put in.
        start = numbers[0] if numbers else int(_HEADER.match(hunk.header)[1]) + 1  # type: ignore[index]
        if line < start:
            break
        shift += sum(each.left is None for each in hunk.lines) - sum(each.right is None for each in hunk.lines)
    return line + shift
