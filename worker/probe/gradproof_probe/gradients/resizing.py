"""Which dimension to make how long for a tensor to have a wanted number of elements, at the least cost.

Arithmetic on shapes alone; no tensor is made here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

Shape = tuple[int, ...]
Resize = tuple[tuple[int, int], ...]

LARGEST: Final = 2**22  # elements of all tensors together: 32 MiB in float64


def resized_shapes(shapes: Sequence[Shape], resize: Resize) -> list[Shape]:
    """Equal sizes are one dimension: each becomes the new size wherever it stands."""
    lengths = dict(resize)
    return [tuple(lengths.get(length, length) for length in shape) for shape in shapes]


def elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def affordable(shapes: Sequence[Shape], resize: Resize) -> bool:
    return elements(resized_shapes(shapes, resize)) <= LARGEST


def beyond(shapes: Sequence[Shape], which: int, wanted: int) -> list[Resize]:
    """Ways for tensor number `which` to get at least `wanted` elements, just so; the cheapest first."""
    return _ordered(shapes, [_reaching(shapes[which], length, wanted) for length in _lengths(shapes[which])])


def exactly(shapes: Sequence[Shape], which: int, wanted: int) -> list[Resize]:
    """Ways for tensor number `which` to get `wanted` elements; the cheapest first."""
    shape = shapes[which]
    found: list[Resize] = []
    for length in _lengths(shape):
        times = shape.count(length)
        rest = math.prod(other for other in shape if other != length)
        if rest and wanted % rest == 0:
            root = round((wanted // rest) ** (1 / times))
            if root > 0 and root**times * rest == wanted:
                found.append(((length, root),))
        # Otherwise all that is needed along one dimension, nothing along the others.
        if times == 1 and len(set(shape)) > 1:
            found.append(tuple((other, wanted if other == length else 1) for other in dict.fromkeys(shape)))
    return _ordered(shapes, found)


def _lengths(shape: Shape) -> list[int]:
    return [length for length in dict.fromkeys(sorted(shape, reverse=True)) if length > 0]


def _reaching(shape: Shape, length: int, wanted: int) -> Resize:
    times = shape.count(length)
    rest = math.prod(other for other in shape if other != length) or 1
    new = max(1, math.ceil((wanted / rest) ** (1 / times)))
    # The root of a large number may be off by one.
    while rest * new**times < wanted:
        new += 1
    while new > 1 and rest * (new - 1) ** times >= wanted:
        new -= 1
    return ((length, new),)


def _ordered(shapes: Sequence[Shape], found: Sequence[Resize]) -> list[Resize]:
    changing = [item for item in dict.fromkeys(found) if any(old != new for old, new in item)]
    priced = [(elements(resized_shapes(shapes, item)), item) for item in changing]
    return [item for price, item in sorted(priced, key=lambda pair: pair[0]) if price <= LARGEST]
