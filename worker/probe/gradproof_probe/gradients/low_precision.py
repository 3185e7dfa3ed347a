"""float32, bfloat16, float16 and autocast: is a gradient there as good as autograd's own in the same type?

The truth is the float64 gradient at the rounded inputs; what the type costs is what autograd through the forward loses
in it. A backward that loses many times more computes something else there, or computes in less than it has to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.battery import LOW_PRECISION, mixed
from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.faults import Fault
from gradproof_probe.gradients.judging import Judge, Ruled
from gradproof_probe.gradients.situations import ORDINARY, Situation, Values
from gradproof_probe.gradients.subject import NotApplicableError, Pull, Subject, autocast, is_differentiable
from gradproof_probe.gradients.trials import Trials

# A relative error (L2) counts from here on: a dozen roundings that happen to add up stay below, a factor doesn't.
# Hand-written formulas in half precision lose up to 3 % where fused kernels, which add up in float32, lose 0.5 %.
FROM: Final = {"float32": 1e-4, "bfloat16": 0.12, "float16": 0.05}
TIMES: Final = 8.0  # what autograd's own error is multiplied with
# Without an oracle only gross errors can be told from what the type costs.
WITHOUT_ORACLE: Final = {"float32": 3e-2, "bfloat16": 0.5, "float16": 0.5}
LARGEST: Final = 200_000  # elements: beyond, half precision is slow on a CPU, and tells nothing new


def dtype_fault(
    subject: Subject, trials: Trials, judge: Judge, *, deadline: float, situations: Sequence[Situation] = LOW_PRECISION
) -> Fault | None:
    """The first type in which the gradient is wrong. Every error counts only if it shows with other values too."""
    if subject.elements > LARGEST or judge.rounding > 1e-9 or subject.random:
        return None
    for situation in [*situations, *mixed(len(subject.positions))]:
        if time.monotonic() > deadline:
            return None
        trials.count.tried += 1
        fault = _measure(subject, situation, oracle=trials.oracle)
        if fault is None:
            continue
        again = replace(situation, values=Values("scaled", -0.73) if _signed(subject) else Values("scaled", 0.73))
        if _measure(subject, again, oracle=trials.oracle) is not None:
            return fault
    return None


def low(situation: Situation) -> bool:
    """Whether it computes in less than float64: such a gradient has to be measured, differences can't judge it."""
    return situation.dtype not in ("float64", "complex128") or situation.autocast != ""


def _signed(subject: Subject) -> bool:
    return all(bool((subject.args[p].real < 0).any()) for p in subject.positions if subject.args[p].numel())


def _measure(subject: Subject, situation: Situation, *, oracle: bool) -> Fault | None:
    try:
        low = subject.make(situation)
        pull = subject.pull(situation)
        wide = [
            item.to(torch.complex128 if item.is_complex() else torch.float64) if is_differentiable(item) else item
            for item in low
        ]
        truth = _at(subject, wide, pull.cotangents, ORDINARY, through=oracle)
        own = _at(subject, low, pull.cotangents, situation, through=True) if oracle else None
    except (NotApplicableError, ForwardError, BackwardError, ValueError, TypeError, IndexError):
        return None
    if truth is None or not _finite(pull.outputs) or not _finite(truth):
        return None
    for index, gradient in enumerate(pull.gradients):
        if gradient is None:
            truth[index] = None
            if own is not None:
                own[index] = None
    kind = "bfloat16" if situation.autocast else situation.dtype
    allowed = WITHOUT_ORACLE[kind]
    if own is not None:
        if not _finite(own):
            return None
        allowed = max(TIMES * _error(own, truth), FROM[kind])
    if _error(pull.gradients, truth) <= allowed:
        return None
    returned = _at(subject, wide, pull.cotangents, ORDINARY, through=False)
    if returned is not None:
        _leave_out(pull.gradients, truth, returned)
    error = _error(pull.gradients, truth)
    if error <= allowed:
        return None
    if not math.isfinite(error) and _largest(low, subject) > 30:
        return None  # an overflow at inputs that are no ordinary ones
    return Fault(situation, pull, truth, _worst(pull, truth))


def _leave_out(
    found: list[torch.Tensor | None], truth: Sequence[torch.Tensor | None], returned: Sequence[torch.Tensor | None]
) -> None:
    """Where the gradient differs from the oracle's in float64 too: corners, which other situations judge."""
    for index, (item, true, wide) in enumerate(zip(found, truth, returned, strict=True)):
        if item is None or true is None or wide is None or not item.numel():
            continue
        apart = (wide - true).abs() > 1e-6 * true.abs().max()
        if bool(apart.any()):
            found[index] = torch.where(apart, true, item.to(true.dtype))


def _at(
    subject: Subject, args: Sequence[Any], cotangents: Sequence[torch.Tensor], situation: Situation, *, through: bool
) -> list[torch.Tensor | None] | None:
    leaves = subject.leaves(args, None)
    given = [
        item.clone() if subject.writes and index in subject.positions else item for index, item in enumerate(leaves)
    ]
    with autocast(situation.autocast != ""):
        outputs = subject.forward(given, through=through)
    if len(outputs) != len(cotangents) or not _finite(outputs):
        return None
    if any(a.shape != b.shape for a, b in zip(outputs, cotangents, strict=True)):
        return None
    return subject.reference_pull(outputs, leaves, cotangents, ORDINARY)


def _finite(items: Sequence[torch.Tensor | None]) -> bool:
    return all(item is None or bool(torch.isfinite(item).all()) for item in items)


def _error(found: Sequence[torch.Tensor | None], truth: Sequence[torch.Tensor | None]) -> float:
    """The largest relative L2 error over the variables, with a floor for those whose gradient is next to nothing."""
    norms = [0.0 if item is None else float(torch.linalg.vector_norm(item)) for item in truth]
    floor = 1e-2 * max(norms, default=0.0)
    worst = 0.0
    for item, true, norm in zip(found, truth, norms, strict=True):
        if item is None and true is None:
            continue
        difference = (0 if item is None else item.to(torch.complex128 if item.is_complex() else torch.float64)) - (
            0 if true is None else true
        )
        if not isinstance(difference, torch.Tensor) or not difference.numel():
            continue
        size = float(torch.linalg.vector_norm(difference)) / max(norm, floor, 1e-300)
        worst = max(worst, size) if math.isfinite(size) else math.inf
    return worst


def _largest(args: Sequence[Any], subject: Subject) -> float:
    return max((float(args[p].abs().max()) for p in subject.positions if args[p].numel()), default=0.0)


def _worst(pull: Pull, truth: Sequence[torch.Tensor | None]) -> Ruled:
    best = Ruled("wrong", 0, 0, 0.0, 0.0, 0.0, 0.0)
    gap = -1.0
    for index, (found, true) in enumerate(zip(pull.gradients, truth, strict=True)):
        if found is None or true is None or not found.numel():
            continue
        apart = (found.to(true.dtype) - true).abs().nan_to_num(math.inf).reshape(-1)
        place = int(apart.argmax())
        if float(apart[place]) > gap:
            gap = float(apart[place])
            value = true.reshape(-1)[place].item()
            best = Ruled("wrong", index, place, found.reshape(-1)[place].item(), value, complex(value).real, 0.0)
    return best
