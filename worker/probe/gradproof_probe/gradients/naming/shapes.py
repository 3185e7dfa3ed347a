"""How a tensor of another shape lines up with a gradient: by broadcasting, or as what a reduction left of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch


def spreads(values: torch.Tensor, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """`values` for each element of `shape`, in every natural way.

    The outputs and incoming gradients of a reduction lack the reduced axes: they are put back in. For a square input
    there are two ways to do so.
    """
    have = tuple(values.shape)
    if have == shape:
        yield values
        return
    if values.numel() == 1:
        yield values.reshape(()).expand(shape)
        return
    if len(have) <= len(shape):
        padded = (1,) * (len(shape) - len(have)) + have
        if all(a in {1, b} for a, b in zip(padded, shape, strict=True)):
            yield values.expand(shape)
    if len(have) == len(shape) - 1:
        for axis in range(len(shape)):
            # The leading axis is broadcasting's own.
            if axis > 0 and have == shape[:axis] + shape[axis + 1 :]:
                yield values.unsqueeze(axis).expand(shape)
    elif len(have) < len(shape) and have == shape[: len(have)]:
        yield values.reshape(have + (1,) * (len(shape) - len(have))).expand(shape)
    elif len(have) == 1 and len(shape) > 2 and have[0] == shape[1]:
        yield values.reshape((1, -1) + (1,) * (len(shape) - 2)).expand(shape)  # one number a channel
    if values.numel() == math.prod(shape) and len(have) != len(shape):
        yield values.reshape(shape)


def spread(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    return next(spreads(values, shape), None)


def axis_sets(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The sets of axes that formulas reduce over, the commonest first; each has more than one element to reduce."""
    count = len(shape)
    if not count:
        return []
    found: list[tuple[int, ...]] = [(count - 1,)]
    if count > 2:
        found.append(tuple(axis for axis in range(count) if axis != 1))  # batch normalisation
        found.append(tuple(range(1, count)))  # all of a sample
        found.append((count - 2, count - 1))
    found += [(axis,) for axis in range(count - 2, -1, -1)]
    found.append(tuple(range(count)))
    unique = dict.fromkeys(found)
    return [axes for axes in unique if math.prod(shape[axis] for axis in axes) > 1]


def axes_words(axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    if len(axes) == len(shape):
        return "everything" if len(shape) > 1 else "its axis"
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
