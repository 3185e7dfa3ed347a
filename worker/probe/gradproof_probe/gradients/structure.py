"""Values that lie on something thinner than the space around them: how to move them without leaving it.

Unit vectors, rows that sum to one, symmetric matrices, sorted rows, 0/1 labels, values in an interval. A function made
for such values may refuse others, or read only a part of them (one triangle of a symmetric matrix); differences along
directions that leave the set then say nothing about the gradient that its caller gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from gradproof_probe.gradients.experiment import Experiment

NEAR: Final = 1e-6
Direction = torch.Tensor


@dataclass(frozen=True, slots=True)
class Structure:
    """`name` for reports; `tangent` makes a direction one that stays inside, to first order."""

    name: str
    tangent: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def structures(value: torch.Tensor) -> list[Structure]:
    """What the values themselves show; interval and order only as far as a direction can respect them."""
    if value.numel() < 2 or value.is_complex() or not bool(torch.isfinite(value).all()):
        return []
    found: list[Structure] = []
    low, high = float(value.min()), float(value.max())
    if bool(((value == 0) | (value == 1)).all()):
        return [Structure("zeros and ones", _still)]
    if _square(value) and bool((value - value.mT).abs().max() <= NEAR * max(abs(low), abs(high))):
        found.append(Structure("symmetric matrices", _symmetrised))
    if value.dim() and value.shape[-1] > 1:
        sums, norms = value.sum(-1), value.norm(dim=-1)
        if low >= 0 and bool((sums - 1).abs().max() <= NEAR):
            found.append(Structure("rows that sum to one", _centred))
        elif bool((norms - 1).abs().max() <= NEAR):
            found.append(Structure("unit vectors", _perpendicular))
        steps = value.diff(dim=-1)
        if value.shape[-1] > 2 and (bool((steps >= 0).all()) or bool((steps <= 0).all())):
            found.append(Structure("sorted rows", _slow))
    if low >= -1 and high <= 1:
        bottom = 0.0 if low >= 0 else -1.0
        found.append(
            Structure(
                f"values from {bottom:g} to 1",
                lambda base, direction: _inside(base, direction, bottom, 1.0),
            )
        )
    elif low >= 0:
        found.append(Structure("no negative values", lambda base, direction: _inside(base, direction, 0.0, None)))
    return found


def tangents(
    values: Sequence[torch.Tensor], directions: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor | None], list[str]]:
    """The directions without what leads out of the sets that the values lie in, and the sets' names."""
    moved: list[torch.Tensor | None] = []
    names: list[str] = []
    for value, direction in zip(values, directions, strict=True):
        if direction is None:
            moved.append(None)
            continue
        changed = direction
        for structure in structures(value):
            changed = structure.tangent(value, changed)
            if structure.name not in names:
                names.append(structure.name)
        moved.append(changed)
    return moved, names


def symmetrised(value: torch.Tensor) -> torch.Tensor:
    """Square matrices made symmetric, everything else as it is."""
    return (value + value.mT) / 2 if _square(value) else value


def _square(value: torch.Tensor) -> bool:
    return value.dim() >= 2 and value.shape[-1] == value.shape[-2] > 1


def _still(_base: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(direction)


def _symmetrised(_base: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return symmetrised(direction)


def _centred(base: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Times the value, so that zeros stay zeros and nothing becomes negative; then without its part along the row."""
    scaled = direction * base
    return scaled - base * scaled.sum(-1, keepdim=True)


def _perpendicular(base: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return direction - base * (direction * base).sum(-1, keepdim=True)


def _slow(base: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """So short that no neighbours change places in a whole step."""
    gaps = base.diff(dim=-1).abs()
    smallest = gaps.amin(-1, keepdim=True) if gaps.numel() else torch.zeros_like(base[..., :1])
    longest = direction.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return direction * (smallest / (4 * longest)).clamp_max(1.0)


def _inside(base: torch.Tensor, direction: torch.Tensor, low: float, high: float | None) -> torch.Tensor:
    """Each element moves by at most half of what is left to the border on the nearer side."""
    room = base - low
    if high is not None:
        room = torch.minimum(room, high - base)
    limit = room.clamp_min(0) / 2
    return torch.sign(direction) * torch.minimum(direction.abs(), limit)


def fill_inside(experiment: Experiment, seed: int, *, ends: bool = False) -> None:
    """Inputs from now on between 0.1 and 0.9, which nearly every domain contains; parameters as they are.

    `ends`: zeros and ones are among them.
    """
    generator = torch.Generator().manual_seed(seed + 11)
    for variable in experiment.variables:
        if variable.kind == "input" and not variable.base.is_complex():
            drawn = torch.rand(variable.base.shape, generator=generator, dtype=torch.float64)
            variable.base = (0.1 + 0.8 * drawn).to(variable.base.dtype)
            if ends:
                flat = variable.base.view(-1)
                flat[::3], flat[1::3] = 0.0, 1.0
    experiment.put_back()
