"""Forward mode and vmap, of Functions that say how they go: against the reverse mode and against a loop.

Both are opt-in: a Function without `jvp`, `vmap` or `generate_vmap_rule` raises there by itself, which is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from gradproof_probe.gradients.experiment import BackwardError, ForwardError, rms
from gradproof_probe.gradients.judging import Tolerance, differs
from gradproof_probe.gradients.making import random_normal
from gradproof_probe.gradients.situations import ORDINARY, Situation
from gradproof_probe.gradients.subject import NotApplicableError, Pull, Subject

# jvp and vjp of one function agree to 6e-15 (checks facts 2.2); hand-written ones sum in another order.
RELATIVE: Final = 1e-7
BATCH: Final = 3


@dataclass(frozen=True, slots=True)
class ModeFault:
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    situation: Situation = ORDINARY


def forward_mode_fault(function: Any, subject: Subject, further: Sequence[Situation] = ()) -> ModeFault | None:
    """v·(jvp u) against (vjp v)·u, whose vjp is known to be right; u in all variables, then in each alone."""
    if function.jvp is torch.autograd.Function.jvp or subject.random:
        return None
    for situation in (ORDINARY, *further):
        try:
            pull = subject.pull(situation)
        except (ForwardError, BackwardError, NotApplicableError, RuntimeError):
            continue
        if not all(bool(torch.isfinite(output).all()) for output in pull.outputs):
            continue
        live = [index for index, gradient in enumerate(pull.gradients) if gradient is not None]
        choices = [live, *([[index] for index in live] if len(live) > 1 else [])]
        for chosen in choices:
            found = _pushed(subject, situation, pull, chosen)
            if found is not None and (situation == ORDINARY or found.numbers):
                return found
    return None


def _pushed(subject: Subject, situation: Situation, pull: Pull, chosen: Sequence[int]) -> ModeFault | None:
    made = subject.make(situation)
    positions = [subject.positions[index] for index in chosen]
    directions = {
        position: rms(made[position]) * random_normal(made[position], subject.seed + 41 + position)
        for position in positions
    }
    try:
        with forward_ad.dual_level():
            given = [
                forward_ad.make_dual(item.clone(), directions[index]) if index in directions else item
                for index, item in enumerate(made)
            ]
            outputs = subject.forward(given)
            tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]
    except (ForwardError, RuntimeError) as error:
        raised = error.cause if isinstance(error, ForwardError) else error
        return ModeFault("forward_mode", f"jvp raises {type(raised).__name__}: {' '.join(str(raised).split())[:300]}")
    pushed = sum(
        _product(cotangent, tangent)
        for cotangent, tangent in zip(pull.cotangents, tangents, strict=True)
        if tangent is not None
    )
    gradients = [(position, pull.gradients[index]) for position, index in zip(positions, chosen, strict=True)]
    pulled = sum(_product(gradient, directions[position]) for position, gradient in gradients if gradient is not None)
    size = sum(
        _product(gradient.abs(), directions[position].abs()) for position, gradient in gradients if gradient is not None
    )
    if abs(pushed - pulled) <= RELATIVE * size:
        return None
    where = situation.describe()
    alone = f", with a tangent for {subject.names[chosen[0]]} alone" if len(chosen) < len(pull.gradients) else ""
    return ModeFault(
        "forward_mode",
        f"jvp is not the transpose of backward, which is right{' ' + where if where else ''}{alone}: v·jvp(u) = "
        f"{pushed:.6g}, backward(v)·u = {pulled:.6g}",
        {"jvp": pushed, "vjp": pulled},
        situation,
    )


def batched_fault(function: Any, subject: Subject) -> ModeFault | None:
    """Outputs and gradients under vmap against a loop."""
    own = function.vmap is not torch.autograd.Function.vmap
    if not (own or function.generate_vmap_rule) or subject.random or subject.writes:
        return None
    made = subject.make(ORDINARY)
    batches = {
        position: torch.stack([made[position], *(subject.other(made)[position] * factor for factor in (1.0, 0.5))])
        for position in subject.positions
    }

    def call(*variables: torch.Tensor) -> Any:
        given = list(made)
        for position, value in zip(subject.positions, variables, strict=True):
            given[position] = value
        outputs = subject.forward(given)
        total: Any = torch.zeros((), dtype=torch.float64)
        for index, output in enumerate(outputs):
            # No random numbers under vmap: a fixed pattern weighs every element differently.
            weight = torch.cos(torch.arange(output.numel(), dtype=torch.float64) + index).reshape(output.shape)
            product = weight * output
            total = total + (product.real if product.is_complex() else product).sum()
        return total

    stacked = [batches[position] for position in subject.positions]
    try:
        leaves = [item.clone().requires_grad_() for item in stacked]
        together = torch.func.vmap(call)(*leaves)
        found = torch.autograd.grad(together.sum(), leaves, allow_unused=True)
        singly = [item.clone().requires_grad_() for item in stacked]
        loop = torch.stack([call(*(item[index] for item in singly)) for index in range(BATCH)])
        expected = torch.autograd.grad(loop.sum(), singly, allow_unused=True)
    except (ForwardError, BackwardError, NotApplicableError, RuntimeError, ValueError, TypeError):
        return None  # loud: vmap refuses more than it accepts
    if not differs([together.detach(), *found], [loop.detach(), *expected], Tolerance.of(torch.float64)):
        return None
    return ModeFault("batched", "under torch.vmap it gives other values or gradients than one call after another")


def _product(a: torch.Tensor, b: torch.Tensor) -> float:
    product = a.conj() * b
    return float((product.real if product.is_complex() else product).sum())
