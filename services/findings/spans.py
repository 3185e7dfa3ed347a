"""Values that lie on some lines of a file, asked by line. Pure.

A submission may have 20,000 findings and as many targets in one file, so asking each of one for each of the other
took minutes; and nothing keeps it from nesting them, so neither their order nor their number bounds what a line has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Spans(Generic[_T]):
    """Each value with the first and the last of its lines."""

    def __init__(self, spans: Iterable[tuple[int, int, _T]]) -> None:
        self._spans = sorted(spans, key=lambda span: span[0])
        self._first = [first for first, _, _ in self._spans]
        # A heap-shaped tree over the spans in that order: each node holds the latest end of those below it.
        self._leaves = 1
        while self._leaves < len(self._spans):
            self._leaves *= 2
        self._latest = [0] * (2 * self._leaves)
        for position, (_, last, _) in enumerate(self._spans):
            self._latest[self._leaves + position] = last
        for node in range(self._leaves - 1, 0, -1):
            self._latest[node] = max(self._latest[2 * node], self._latest[2 * node + 1])

    def at(self, line: int) -> tuple[_T, ...]:
        """The values whose lines include this one, in the order of their first lines.

        Takes as many steps as it returns values, times the logarithm of how many there are.
        """
        end = bisect_right(self._first, line)
        found: list[_T] = []
        nodes = [1]
        while nodes:
            node = nodes.pop()
            if self._latest[node] < line:
                continue
            if node < self._leaves:
                nodes += [2 * node + 1, 2 * node]  # the earlier half is taken first
            elif node - self._leaves < end:
                found.append(self._spans[node - self._leaves][2])
            else:
                break  # everything after this begins later
        return tuple(found)

    def beginning(self, first: int, last: int) -> tuple[_T, ...]:
        """The values whose first line lies between these two, both included."""
        start, end = bisect_left(self._first, first), bisect_right(self._first, last)
        return tuple(value for _, _, value in self._spans[start:end])
