"""The set that an argument is taken from, as its ordinary values show it: what leaves it is no input that happens.

Probabilities are not negative and a distribution has no row of zeros; labels are zeros and ones. A chance resemblance
must not count: each set is believed only where random values of that many elements hardly lie in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from gradproof_probe.nan_search.subject import Inputs
from gradproof_probe.trees import tensors

_NEAR: Final = 1e-4
# Normal values are all positive with chance 0.5^n, and all within ±1 with 0.68^n: 3 % and 0.2 %.
_FEWEST_POSITIVE: Final = 5
_FEWEST_WITHIN_ONE: Final = 16


@dataclass(frozen=True, slots=True)
class Set:
    """`name` for reports, in the plural: what the values are."""

    name: str
    holds: Callable[[torch.Tensor], bool]


def left(ordinary: Inputs, made: Inputs) -> str | None:
    """What some argument isn't any more, though its ordinary values are: `x` without `rows that sum to one`."""
    for slot in made.slots():
        before = [tensor for _, tensor in tensors(ordinary.get(slot))]
        after = [tensor for _, tensor in tensors(made.get(slot))]
        for base, value in zip(before, after, strict=False):
            if value is base or not value.numel() or not _looked_at(value):
                continue
            for one in sets_of(base):
                if not one.holds(value.detach().to(torch.float64)):
                    return f"`{made.name(slot)}` without {one.name}"
    return None


def sets_of(value: torch.Tensor) -> list[Set]:
    """The sets that the values lie in, and hardly by chance."""
    value = value.detach()
    if not _looked_at(value) or value.numel() < _FEWEST_POSITIVE:
        return []
    value = value.to(torch.float64)
    low, high = float(value.min()), float(value.max())
    if low == 0 and high == 1 and _binary(value):
        return [Set("zeros and ones", _binary)]
    if low == high:
        return []  # a constant is a start, not a sample
    return [*_shaped(value), *_bounded(value, low, high)]


def _looked_at(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.layout == torch.strided and bool(value.detach().isfinite().all())


def _shaped(value: torch.Tensor) -> Iterator[Set]:
    if value.dim() >= 2 and value.shape[-1] == value.shape[-2] > 1 and _symmetric(value):
        yield Set("symmetric matrices", _symmetric)
    for axes in _axes(value):
        if _distributed(value, axes):
            yield Set("rows that sum to one", partial(_distributed, axes=axes))
            return
    if value.dim() and value.shape[-1] > 1 and _unit(value):
        yield Set("unit vectors", _unit)


def _bounded(value: torch.Tensor, low: float, high: float) -> Iterator[Set]:
    if low >= 0:
        top = 1.0 if high <= 1 else float("inf")
        name = "values from 0 to 1" if high <= 1 else "values of 0 and more"
        yield Set(name, lambda made: bool((made >= 0).all()) and bool((made <= top + _NEAR).all()))
    elif value.numel() >= _FEWEST_WITHIN_ONE and low >= -1 and high <= 1:
        yield Set("values from -1 to 1", lambda made: bool((made.abs() <= 1 + _NEAR).all()))


def _axes(value: torch.Tensor) -> list[tuple[int, ...]]:
    """Where distributions lie: along the last axis, the classes after the batch, or a whole picture."""
    found: list[tuple[int, ...]] = [(-1,)] if value.dim() else []
    if value.dim() > 2:
        found += [(1,), (-2, -1)]
    return found


def _binary(value: torch.Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _symmetric(value: torch.Tensor) -> bool:
    return bool((value - value.mT).abs().max() <= _NEAR * max(1e-30, float(value.abs().max())))


def _distributed(value: torch.Tensor, axes: tuple[int, ...]) -> bool:
    return bool((value >= 0).all()) and bool((value.sum(axes) - 1).abs().max() <= _NEAR)


def _unit(value: torch.Tensor) -> bool:
    return bool((value.norm(dim=-1) - 1).abs().max() <= _NEAR)
