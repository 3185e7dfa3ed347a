"""Places the boxes of a graph without cycles in rows, as people draw one: what is read stands above what reads it.

The method of Sugiyama and others: rows by the longest way, bends where an edge passes a row, an order within rows with
few crossings, and positions close to those of the neighbours. Libraries that do it need Graphviz's program or have not
been kept up. Boxes never overlap, and edges run between them: through a gap that belongs to them, or between two rows.
This module knows sizes and numbers only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_IN_A_ROW: Final = 8  # boxes; a picture of a hundred stays readable across
_SWEEPS: Final = 6
_BEND: Final = 10.0  # the width that an edge has to itself where it passes a row
_APART: Final = 16.0
_BETWEEN_ROWS: Final = 34.0
_STRAIGHT: Final = 4.0  # how much more a bend insists on its place than a box does

Point = tuple[float, float]


@dataclass(slots=True)
class Layout:
    """`boxes` are the left upper corners; `ways` are the pieces of the edges that begin at each box, and `ends` where
    these end. A piece goes from a row to the next, or straight down through a row, and is there once, however many
    edges share it."""

    width: float
    height: float
    boxes: list[Point]
    ways: list[list[tuple[Point, Point]]]
    ends: list[list[Point]]


@dataclass(slots=True)
class _Item:
    """A box (`box` its number) or a bend of the edges that begin at the box `source`."""

    box: int | None
    source: int
    width: float
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0  # of the middle


def place(sizes: Sequence[tuple[float, float]], reads: Sequence[Sequence[int]]) -> Layout:
    """`sizes` are (width, height); `reads[i]` are the boxes that box i reads, all of them before i."""
    rows_of = _rows_of(reads)
    items, rows = _with_bends(sizes, reads, rows_of)
    rows = _ordered(items, rows)
    _position(items, rows)
    return _drawn(sizes, rows_of, items, rows)


def _rows_of(reads: Sequence[Sequence[int]]) -> list[int]:
    readers: list[list[int]] = [[] for _ in reads]
    for index, read in enumerate(reads):
        for other in read:
            readers[other].append(index)
    found = [0] * len(reads)
    filled: dict[int, int] = {}
    for index, read in enumerate(reads):
        if not read:
            continue
        row = max(found[other] for other in read) + 1
        while filled.get(row, 0) >= MOST_IN_A_ROW:
            row += 1
        found[index] = row
        filled[row] = filled.get(row, 0) + 1
    # What reads nothing stands right above what reads it first; what has no edge at all below everything.
    for index, read in enumerate(reads):
        if not read and readers[index]:
            found[index] = min(found[reader] for reader in readers[index]) - 1
    last = max((found[index] for index, read in enumerate(reads) if read or readers[index]), default=-1)
    alone = [index for index, read in enumerate(reads) if not read and not readers[index]]
    for position, index in enumerate(alone):
        found[index] = last + 1 + position // MOST_IN_A_ROW
    return _without_crowds(found, reads, readers)


def _without_crowds(rows_of: list[int], reads: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]) -> list[int]:
    """Rows that boxes which read nothing have filled too far are split: they go to new rows above."""
    crowds: dict[int, list[int]] = {}
    for index, row in enumerate(rows_of):
        if not reads[index] and readers[index]:
            crowds.setdefault(row, []).append(index)
    extra = {row: (len(some) - 1) // MOST_IN_A_ROW for row, some in crowds.items()}
    lower = [row + sum(more for other, more in extra.items() if other <= row) for row in rows_of]
    for row, some in crowds.items():
        for position, index in enumerate(some):
            lower[index] -= extra[row] - position // MOST_IN_A_ROW
    return lower


def _with_bends(
    sizes: Sequence[tuple[float, float]], reads: Sequence[Sequence[int]], rows_of: Sequence[int]
) -> tuple[list[_Item], list[list[int]]]:
    """Edges that begin at one box share their bends: at most one in each row."""
    items = [_Item(index, index, width) for index, (width, _) in enumerate(sizes)]
    rows: list[list[int]] = [[] for _ in range(max(rows_of, default=-1) + 1)]
    for index, row in enumerate(rows_of):
        rows[row].append(index)
    bends: dict[tuple[int, int], int] = {}
    for index, read in enumerate(reads):
        for source in read:
            above = source
            for row in range(rows_of[source] + 1, rows_of[index]):
                if (source, row) not in bends:
                    bends[source, row] = len(items)
                    rows[row].append(len(items))
                    items.append(_Item(None, source, _BEND, [above]))
                    items[above].below.append(bends[source, row])
                above = bends[source, row]
            items[above].below.append(index)
            items[index].above.append(above)
    return items, rows


def _ordered(items: list[_Item], rows: list[list[int]]) -> list[list[int]]:
    best, fewest = rows, _crossings(items, rows)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        rows = [list(row) for row in rows]
        positions = {item: position for row in rows for position, item in enumerate(row)}
        for row in rows if down else reversed(rows):
            wanted: dict[int, float] = {}
            for item in row:
                near = items[item].above if down else items[item].below
                wanted[item] = sum(positions[other] for other in near) / len(near) if near else positions[item]
            row.sort(key=lambda item: (wanted[item], positions[item]))
            positions.update((item, position) for position, item in enumerate(row))
        crossings = _crossings(items, rows)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(items: Sequence[_Item], rows: Sequence[Sequence[int]]) -> int:
    positions = {item: position for row in rows for position, item in enumerate(row)}
    found = 0
    for row in rows:
        ends: list[int] = []
        for item in row:
            below = sorted(positions[other] for other in items[item].below)
            found += sum(len(ends) - bisect_left(ends, position + 1) for position in below)
            for position in below:
                insort(ends, position)
    return found


def _position(items: list[_Item], rows: Sequence[Sequence[int]]) -> None:
    for row in rows:
        at = 0.0
        for item in row:
            items[item].x = at + items[item].width / 2
            at += items[item].width + _APART
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = []
            for item in row:
                near = items[item].above if down else items[item].below
                near = near or items[item].below or items[item].above
                wanted.append(sum(items[other].x for other in near) / len(near) if near else items[item].x)
            for item, x in zip(row, _spread(items, row, wanted), strict=True):
                items[item].x = x


def _spread(items: Sequence[_Item], row: Sequence[int], wanted: Sequence[float]) -> list[float]:
    """The positions closest to those wanted (least squares) at which nothing overlaps and the order stays.

    Less what stands to its left, each position may not be below the one before: pools of adjacent violators.
    """
    offsets: list[float] = []
    at = 0.0
    for position, item in enumerate(row):
        if position:
            at += (items[row[position - 1]].width + items[item].width) / 2 + _APART
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # (mean, weight, how many)
    for item, x, offset in zip(row, wanted, offsets, strict=True):
        mean, weight, count = x - offset, 1.0 if items[item].box is not None else _STRAIGHT, 1
        while pools and pools[-1][0] >= mean:
            other, more, number = pools.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, count = weight + more, count + number
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _drawn(
    sizes: Sequence[tuple[float, float]],
    rows_of: Sequence[int],
    items: Sequence[_Item],
    rows: Sequence[Sequence[int]],
) -> Layout:
    left = min((item.x - item.width / 2 for item in items), default=0.0)
    width = max((item.x + item.width / 2 for item in items), default=0.0) - left
    tops: list[float] = []
    at = 0.0
    for row in rows:
        tops.append(at)
        at += max((sizes[item][1] for item in row if items[item].box is not None), default=0.0) + _BETWEEN_ROWS
    heights = [
        (tops[number + 1] if number + 1 < len(tops) else at) - top - _BETWEEN_ROWS for number, top in enumerate(tops)
    ]
    row_of = {item: number for number, row in enumerate(rows) for item in row}

    def top(item: int) -> Point:
        return items[item].x - left, tops[row_of[item]]

    def bottom(item: int) -> Point:
        box, row = items[item].box, row_of[item]
        return items[item].x - left, tops[row] + (sizes[box][1] if box is not None else heights[row])

    ways: list[list[tuple[Point, Point]]] = [[] for _ in sizes]
    ends: list[list[Point]] = [[] for _ in sizes]
    for index, item in enumerate(items):
        if item.box is None:
            ways[item.source].append((top(index), bottom(index)))
        for other in item.below:
            # A box that is lower than its row: straight down to the end of the row first, past its neighbours.
            start, end = bottom(index), top(other)
            edge = (start[0], tops[row_of[index]] + heights[row_of[index]])
            if edge != start:
                ways[item.source].append((start, edge))
            ways[item.source].append((edge, end))
            if items[other].box is not None:
                ends[item.source].append(end)
    return Layout(
        width=width,
        height=max(at - _BETWEEN_ROWS, 0.0),
        boxes=[(items[index].x - size[0] / 2 - left, tops[rows_of[index]]) for index, size in enumerate(sizes)],
        ways=ways,
        ends=ends,
    )
