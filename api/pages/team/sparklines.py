"""A trend in the size of a word: the points of a polyline, and the sentence that says the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 120
HEIGHT: Final = 28
_MARGIN: Final = 2


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`points` is what `<polyline points="…">` takes, in a box of `WIDTH` by `HEIGHT`."""

    points: str
    text: str


def sparkline(values: Sequence[int], noun: str) -> Sparkline | None:
    """The line of some counts, the oldest first; None for fewer than two, which have no trend."""
    if len(values) < 2:
        return None
    most = max(values) or 1
    step = WIDTH / (len(values) - 1)
    usable = HEIGHT - 2 * _MARGIN
    points = " ".join(
        f"{number * step:.1f},{_MARGIN + usable * (1 - value / most):.1f}" for number, value in enumerate(values)
    )
    return Sparkline(points, f"{noun}, the last {len(values)} analyses: from {values[0]:,} to {values[-1]:,}")
