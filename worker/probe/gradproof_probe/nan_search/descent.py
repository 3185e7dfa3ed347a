"""Drives the operand of one singular operation to its singular set, by moving the inputs along its gradient.

A full step would do for a linear operand, twice that for a square; a probability is moved by its logarithm. Constants
that training would have to hit to the last bit are found too: whoever asked must grade the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.nan_search.birth import watch_forward
from gradproof_probe.nan_search.spy import Event
from gradproof_probe.nan_search.subject import Evaluation, Inputs, Leaf, Subject

_STEPS: Final = 12
# Far enough below the smallest float32 (1e-45) for the exponential of it to be 0.
_LOGARITHM_OF_NOTHING: Final = -110.0


@dataclass(frozen=True, slots=True)
class Goal:
    """The operation to make singular: which one of its kind on its line."""

    operation: str
    place: Place | None
    ordinal: int

    def of(self, events: list[Event]) -> Event | None:
        same = [e for e in events if e.operation == self.operation and e.place == self.place and e.operand is not None]
        return same[self.ordinal] if self.ordinal < len(same) else None


def goals(events: list[Event]) -> list[Goal]:
    """The singular operations of a run that a gradient can lead to, one for each line and kind."""
    found: dict[Goal, None] = {}
    for event in events:
        if event.operand is not None and event.operand.requires_grad and event.place is not None:
            found.setdefault(Goal(event.operation, event.place, 0))
    return list(found)


def closest(event: Event) -> float:
    """The least distance of the operand from the singular set."""
    if event.singularity is None or event.operand is None or not event.operand.numel():
        return math.inf
    distance = event.singularity.residual(event.operand.detach()).abs()
    return float(torch.nan_to_num(distance, nan=math.inf).min())


def descend(
    subject: Subject,
    inputs: Inputs,
    goal: Goal,
    source_root: Path,
    found: Callable[[Inputs, Evaluation], bool],
    more: Callable[[], bool],
) -> tuple[Inputs | None, float]:
    """The inputs at which `found` first holds (None: nowhere), and the least distance that was reached."""
    best = math.inf
    for _ in range(_STEPS):
        watched = watch_forward(subject, inputs, source_root) if more() else None
        event = None if watched is None else goal.of(watched[1].events)
        if watched is None or event is None:
            return None, best
        best = min(best, closest(event))
        candidates = _moved(inputs, watched[0], event)
        scored: list[tuple[float, Inputs]] = []
        for candidate in candidates:
            evaluation = subject.run(candidate)
            if evaluation is None:
                continue
            if found(candidate, evaluation):
                again = watch_forward(subject, candidate, source_root)
                reached = None if again is None else goal.of(again[1].events)
                return candidate, best if reached is None else min(best, closest(reached))
            again = watch_forward(subject, candidate, source_root)
            reached = None if again is None else goal.of(again[1].events)
            if reached is not None:
                scored.append((closest(reached), candidate))
        if not scored or min(score for score, _ in scored) >= best:
            return None, best
        best, inputs = min(scored, key=lambda item: item[0])
    return None, best


def _moved(inputs: Inputs, evaluation: Evaluation, event: Event) -> list[Inputs]:
    """The inputs after a step of each length."""
    assert event.singularity is not None
    assert event.operand is not None
    leaves = [leaf for leaf in evaluation.leaves if leaf.is_input]
    try:
        residual = event.singularity.residual(event.operand)
        flat = torch.where(residual.isfinite(), residual.abs(), math.inf).flatten()
        index = int(flat.argmin())
        value = residual.flatten()[index]
        gradients = torch.autograd.grad(value, [leaf.tensor for leaf in leaves], allow_unused=True)
    except (RuntimeError, ValueError, IndexError):
        return []
    size = sum(float(g.to(torch.float64).square().sum()) for g in gradients if g is not None)
    distance = float(value.detach())
    if not 0 < size < math.inf or not math.isfinite(distance):
        return []
    lengths = [1.0, 2.0]
    if distance > 0:
        lengths.append(math.log(distance) - _LOGARITHM_OF_NOTHING)
    return [
        _stepped(inputs, leaves, [None if g is None else g * (length * distance / size) for g in gradients])
        for length in lengths
    ]


def _stepped(inputs: Inputs, leaves: list[Leaf], steps: list[Any]) -> Inputs:
    # Leaves come in the order of the tensors in the arguments, which `transformed` walks as well.
    waiting = list(zip(leaves, steps, strict=True))

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
            return tensor
        _, step = waiting.pop(0)
        return tensor if step is None else (tensor.detach() - step.to(tensor.dtype))

    return inputs.transformed(change)
