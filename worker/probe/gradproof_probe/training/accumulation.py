"""What the gradient of a step is made of, in numbers: which sum of those of its micro-batches, which multiple of that
of the whole batch. All at the same parameters. This module must not run anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.training.step_gradients import Recorded, Step

# Float32 gradients of a few layers agree to 1e-5 in whatever order they are summed; what is looked for is a factor of
# two, or whole gradients that are missing.
RESIDUAL: Final = 1e-3
FACTOR: Final = 0.02
SAME: Final = 1e-5
_CONDITION: Final = 1e-2  # micro-batches whose gradients are nearer to each other can't be told apart


@dataclass(frozen=True, slots=True)
class Fault:
    """A named way in which a step does not follow the gradient of its batch."""

    cause: str
    text: str
    place: Place | None
    numbers: dict[str, Any] = field(default_factory=dict)
    between_calls: bool = False


def multiple(value: torch.Tensor, of: torch.Tensor, residual: float = RESIDUAL) -> float | None:
    """The factor between two gradients; None if they point elsewhere or one is zero."""
    size, other = float(value.norm()), float(of.norm())
    if size == 0 or other == 0:
        return None
    factor = float(value @ of) / other**2
    return factor if float((value - factor * of).norm()) <= residual * size else None


def shares(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[float] | None:
    """With which positive factors the parts add up to the whole; None if they don't, or can't be told apart."""
    matrix = torch.stack(list(parts), dim=1)
    sizes = matrix.norm(dim=0)
    if float(sizes.min()) == 0 or float(whole.norm()) == 0:
        return None
    scaled = matrix / sizes
    values = torch.linalg.svdvals(scaled)
    if float(values[-1]) < _CONDITION * float(values[0]):
        return None
    found = torch.linalg.lstsq(scaled, whole.unsqueeze(1)).solution.squeeze(1)
    if float((scaled @ found - whole).norm()) > RESIDUAL * float(whole.norm()) or float(found.min()) <= 0:
        return None
    return [float(value) for value in found / sizes]


def kept_or_lost(recorded: Recorded) -> Fault | None:
    """A step with a gradient that the step before has used already, or without those of some of its micro-batches."""
    before: dict[bytes, torch.Tensor] = {}
    for step in recorded.steps:
        key = step.mask.numpy().tobytes()
        if step.since:
            fault = _kept(recorded, step, before.get(key)) or _lost(recorded, step)
            if fault is not None:
                return fault
        before[key] = step.gradient
    return None


def _kept(recorded: Recorded, step: Step, used: torch.Tensor | None) -> Fault | None:
    first, last = recorded.backwards[step.since[0]], step.since[-1]
    left = first.before * step.mask
    if used is None or not bool(left.any()) or float((left - used).norm()) > SAME * float(left.norm()):
        return None
    if any(step.since[0] < number <= last + 1 for number, _ in recorded.clears):
        return None
    if multiple(step.gradient, left + _sum(recorded, step)) is None:
        return None
    share = float(left.norm()) / max(float(step.gradient.norm()), 1e-30)
    text = (
        "gradients are not cleared between two steps: this backward() adds to those that the step before has used, "
        f"which are as large as {share:.2g} of the sum"
    )
    return Fault("gradients_not_cleared", text, first.place, {"share_of_the_step_before": share})


def _lost(recorded: Recorded, step: Step) -> Fault | None:
    passes = [recorded.backwards[number] for number in step.since]
    # Parameters that were moved in between have been looked around from: the gradient before has had its use.
    if (
        len({(item.place, item.point) for item in passes}) != 1
        or multiple(step.gradient, _sum(recorded, step)) is not None
    ):
        return None
    number = len(step.since)
    for lost in range(1, number + 1):
        rest = step.since[lost:]
        tail = sum((recorded.backwards[item].gave for item in rest), torch.zeros_like(step.gradient)) * step.mask
        alone = not bool(step.gradient.any()) if not rest else multiple(step.gradient, tail) is not None
        if not alone:
            continue
        clears = [place for at, place in recorded.clears if step.since[lost - 1] < at <= (rest[0] if rest else at)]
        if not clears:
            return None  # submitted code took them elsewhere by itself
        numbers = {"micro_batches": number, "lost": lost}
        if number == 1:
            text = "the gradients are cleared between backward() and step(), which follows none"
            return Fault("gradients_cleared_before_step", text, clears[0], numbers)
        text = (
            f"gradients are cleared between micro-batches: the step follows {number - lost} of the {number} that were "
            "run since the step before"
        )
        return Fault("gradients_cleared_before_step", text, clears[-1], numbers)
    return None


def scale_of(
    recorded: Recorded, step: Step, whole: torch.Tensor, *, nominal: int, is_first: bool, sizes: Sequence[int] | None
) -> Fault | str | None:
    """The step against the gradient of its micro-batches as one batch: a fault, None, or why it can't be judged.

    `nominal`: how many micro-batches make a step. `sizes`: of the micro-batches, where each is a batch of its own; it
    is usual then that each counts the same.
    """
    place = recorded.backwards[step.since[-1]].place
    number = len(step.since)
    factor = multiple(step.gradient, whole * step.mask)
    if factor is None:
        return _weights(recorded, step, whole, sizes, place)
    if abs(factor - 1) <= FACTOR:
        return None
    numbers = {"micro_batches": number, "ratio": factor}
    times = f"{factor:.3g} times the gradient of the same {number} micro-batches as one batch"
    if number < nominal and _is(factor, number / nominal):
        if is_first:
            text = (
                f"the first step comes after {number} of {nominal} micro-batches and follows {times}: the windows of "
                "all steps are shifted"
            )
            return Fault("window_shifted", text, step.place, numbers)
        text = (
            f"the last step, of {number} micro-batches, follows {times}: their losses are divided by {nominal} all "
            "the same"
        )
        return Fault("last_window_divided_by_all", text, place, numbers)
    if number > 1 and _is(factor, number):
        text = f"the step follows {times}: the loss of each is a mean, and nothing divides by their number"
        return Fault("accumulation_not_divided", text, place, numbers)
    if number > 1 and _is(factor, 1 / number):
        return Fault("divided_twice", f"the step follows {times}: it is divided twice", place, numbers)
    if number == 1:
        return "the gradient of a batch depends on how many batches make a step"
    return Fault("accumulation_scaled", f"the step follows {times}", place, numbers)


def _weights(
    recorded: Recorded, step: Step, whole: torch.Tensor, sizes: Sequence[int] | None, place: Place | None
) -> Fault | str | None:
    number = len(step.since)
    parts = [recorded.backwards[item].gave * step.mask for item in step.since]
    if multiple(step.gradient, _sum(recorded, step)) is None:
        return "the gradient of the step is no sum of those of its micro-batches: code changes them in between"
    found = shares(whole * step.mask, parts) if number > 1 else None
    if found is None:
        return (
            "the gradient of the whole batch is no sum of those of the micro-batches: the samples of a batch are "
            "compared with each other, or share statistics"
        )
    wanted = [value / sum(found) for value in found]
    if sizes is not None and len(sizes) == number and len(set(sizes)) > 1:
        by_size = [size / sum(sizes) for size in sizes]
        if all(abs(a - b) <= FACTOR * b for a, b in zip(wanted, by_size, strict=True)):
            return None
    listed = ", ".join(f"{value:.2f}" for value in wanted)
    text = (
        f"the {number} micro-batches of a step count the same, although in the loss of the whole batch they count "
        f"{listed}: each is averaged over its own number of samples or tokens; divide sums by the number in all of them"
    )
    return Fault("unequal_weights", text, place, {"micro_batches": number, "weights": wanted})


def _sum(recorded: Recorded, step: Step) -> torch.Tensor:
    total = torch.zeros_like(step.gradient)
    for number in step.since:
        total = total + recorded.backwards[number].gave
    return total * step.mask


def _is(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= FACTOR * wanted
