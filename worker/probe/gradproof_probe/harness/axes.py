"""Axes of tensors as unknowns: which are the same, which have a known size, and small distinct sizes for the rest.

The demand analysis only speaks in these; nothing here knows torch or the submitted code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

Shape = tuple[int, ...]
LARGEST: Final = 4096
DEPTH: Final = 4  # of products of products; a product of itself, from a misread line, ends here too

# Sizes by the letter or word that the author gives an axis. Two axes never share a size unless the author says so.
_BY_SYMBOL: Final[dict[str, int]] = {
    "b": 2,
    "bs": 2,
    "batch": 2,
    "batch_size": 2,
    "bsz": 2,
    "n": 5,
    "t": 5,
    "l": 5,
    "s": 5,
    "seq": 5,
    "seq_len": 5,
    "length": 5,
    "i": 5,
    "j": 7,
    "h": 6,
    "height": 16,
    "w": 8,
    "width": 16,
    "d": 8,
    "dim": 8,
    "c": 3,
    "channels": 3,
    "f": 4,
    "nodes": 5,
    "edges": 7,
    "k": 4,
    "m": 7,
}
_SPARE: Final = (2, 5, 8, 6, 4, 7, 3, 9, 10, 12, 11, 13)


class Axis:
    """One unknown size. Axes are joined; the questions are answered by what they are joined into."""

    __slots__ = ("_into", "divisors", "least", "most", "parts", "size", "symbol")

    def __init__(self, size: int | None = None, symbol: str = "") -> None:
        self._into: Axis | None = None
        self.size = size
        self.symbol = symbol
        self.divisors: set[int] = set()
        self.least = 1
        self.most = LARGEST
        self.parts: tuple[Axis, ...] = ()

    def root(self) -> Axis:
        axis = self
        while axis._into is not None:
            axis = axis._into
        return axis

    def join(self, other: Axis) -> bool:
        """Make both the same size; False, and nothing done, where that cannot be."""
        mine, theirs = self.root(), other.root()
        if mine is theirs:
            return True
        if mine.size is not None and theirs.size is not None and mine.size != theirs.size:
            return False
        theirs._into = mine
        mine.size = mine.size if mine.size is not None else theirs.size
        mine.symbol = mine.symbol or theirs.symbol
        mine.divisors |= theirs.divisors
        mine.least = max(mine.least, theirs.least)
        mine.most = min(mine.most, theirs.most)
        mine.parts = mine.parts or theirs.parts
        return True

    def fix(self, size: int) -> bool:
        """Give the size; False where another is known already."""
        axis = self.root()
        if axis.size is None and 0 < size <= LARGEST:
            axis.size = size
        return axis.size == size

    def known(self, depth: int = 0) -> int | None:
        axis = self.root()
        if axis.size is None and axis.parts and depth < DEPTH:
            sizes = [part.known(depth + 1) for part in axis.parts]
            if all(size is not None for size in sizes):
                return math.prod(size for size in sizes if size is not None)
        return axis.size


def square_side(axis: Axis) -> Axis | None:
    """The side of the square that a flattened axis is taken for; None where it is known to be another thing."""
    root, known = axis.root(), axis.known()
    if known is not None:
        side = math.isqrt(known)
        return Axis(side) if side * side == known else None
    if root.parts:
        first, *others = [part.root() for part in root.parts]
        return first if len(others) == 1 and others[0] is first else None
    root.parts = (Axis(),) * 2
    return root.parts[0]


@dataclass(slots=True, eq=False)
class Form:
    """The shape of a tensor as far as it is known: its rank, and axes counted from the front and from the back."""

    rank: int | None = None
    least_rank: int = 0
    axes: dict[int, Axis] = field(default_factory=dict)
    dtype: str = ""
    high: int | None = None
    """Upper bound of integer values."""
    base: Form | None = None
    """The form that this is a view of: its elements are of the same type."""
    offset: int | None = None
    """How many axes it has more than its base, where that is known."""
    twin: Form | None = None
    """The form of the same rank of which some axes were moved or replaced."""

    def axis(self, index: int) -> Axis:
        if self.rank is not None:
            index = index + self.rank if index < 0 else index
        else:
            self.least_rank = max(self.least_rank, index + 1 if index >= 0 else -index)
        if index not in self.axes:
            self.axes[index] = self._of_twin(index) or Axis()
        return self.axes[index]

    def _of_twin(self, index: int) -> Axis | None:
        """An axis that wasn't moved; while the rank is unknown, only where none is counted from the other end."""
        if self.twin is None or (self.rank is None and any((place < 0) != (index < 0) for place in self.axes)):
            return None
        return self.twin.axis(index)

    def want(self, dtype: str, high: int | None = None) -> None:
        """Demand a type of the elements, and integers below `high`; the first demand holds."""
        self.dtype = self.dtype or dtype
        self.high = self.high or high
        if self.base is not None:
            self.base.want(dtype, high)

    def set_rank(self, rank: int) -> bool:
        if self.rank is not None or rank < self.least_rank:
            return self.rank == rank
        if self.twin is not None and not self.twin.set_rank(rank):
            return False
        if self.base is not None and self.offset is not None:
            self.base.set_rank(rank - self.offset)
        self.rank = rank
        for index in [index for index in self.axes if index < 0]:
            axis = self.axes.pop(index)
            if rank + index in self.axes:
                self.axes[rank + index].join(axis)
            else:
                self.axes[rank + index] = axis
        return True

    def all_axes(self) -> list[Axis] | None:
        return None if self.rank is None else [self.axis(index) for index in range(self.rank)]

    def same(self, other: Form) -> None:
        """Both have one shape (rank and axes joined where they may be)."""
        if self is other:
            return
        if self.rank is not None:
            other.set_rank(self.rank)
        elif other.rank is not None:
            self.set_rank(other.rank)
        if self.rank != other.rank:
            return
        for index in {*self.axes, *other.axes}:
            self.axis(index).join(other.axis(index))

    @classmethod
    def of(cls, axes: Iterable[Axis]) -> Form:
        listed = list(axes)
        return cls(rank=len(listed), least_rank=len(listed), axes=dict(enumerate(listed)))


class Sizes:
    """Gives every unknown axis a small size, the same one each time it is asked."""

    def __init__(self, side: int | None = None) -> None:
        self._given: dict[int, int] = {}
        self._used: set[int] = set()
        self._side = side
        self._kept: list[Axis] = []

    def of(self, axis: Axis, usual: int | None = None, depth: int = 0) -> int:
        known = axis.known()
        if known is not None:
            return known
        root = axis.root()
        if id(root) in self._given:
            return self._given[id(root)]
        composed = bool(root.parts) and depth < DEPTH
        size = self._of_parts(root.parts, depth) if composed else self._choose(root, usual)
        self._given[id(root)] = size
        self._kept.append(root)
        self._used.add(size)
        return size

    def _of_parts(self, parts: tuple[Axis, ...], depth: int) -> int:
        """A product; where a side is asked for, the one open part is what the others leave of it."""
        unknown = [part for part in parts if part.known() is None]
        if self._side is not None and len(unknown) == 1 and id(unknown[0].root()) not in self._given:
            rest = math.prod(part.known() or 1 for part in parts)
            root = unknown[0].root()
            if not root.parts and rest <= self._side:
                self._given[id(root)] = max(1, self._side // rest)
                self._kept.append(root)
        return math.prod(self.of(part, depth=depth + 1) for part in parts)

    def _choose(self, root: Axis, usual: int | None) -> int:
        step = math.lcm(*root.divisors) if root.divisors else 1
        by_symbol = _BY_SYMBOL.get(root.symbol.lower())
        spatial = root.symbol.lower() in ("h", "w", "height", "width")
        if self._side is not None and (spatial or usual in (6, 8)):
            wanted = [self._side]
        else:
            wanted = [size for size in (by_symbol, usual, *_SPARE) if size is not None]
        fitting = [self._rounded(min(size, root.most), step, root.least) for size in wanted]
        fresh = [size for size in fitting if size not in self._used]
        return fresh[0] if fresh and self._side is None else fitting[0]

    @staticmethod
    def _rounded(size: int, step: int, least: int) -> int:
        return max(-(-size // step), -(-least // step), 1) * step
