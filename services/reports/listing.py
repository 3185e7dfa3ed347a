"""Parts of a report, filtered and page by page.

A cursor is the position in the unfiltered list, so that it stays good when filters change or verdicts are settled
between two pages. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.problems import BadInputError

T = TypeVar("T")


class CursorError(BadInputError):
    """A cursor that no page ever gave."""

    code = "invalid-cursor"
    title = "The cursor can't be used"


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """Some items, and the cursor of the next page (None: there is none)."""

    items: tuple[T, ...]
    next_cursor: str | None


def take(items: Sequence[T], wanted: Callable[[T], bool], *, cursor: str | None, limit: int) -> Slice[T]:
    """The next `limit` wanted items behind the cursor. Raises `CursorError`."""
    taken: list[tuple[int, T]] = []
    for position in range(position_of(cursor), len(items)):
        if wanted(items[position]):
            if len(taken) == limit:
                return Slice(tuple(item for _, item in taken), str(taken[-1][0] + 1))
            taken.append((position, items[position]))
    return Slice(tuple(item for _, item in taken), None)


def position_of(cursor: str | None) -> int:
    """The position that a cursor stands for; 0 without one. Raises `CursorError`."""
    if cursor is None:
        return 0
    # Nine digits are more than any report has, and far from where a number becomes expensive to read.
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise CursorError("the cursor is none that a page gave", cursor=cursor[:50])
    return int(cursor)
