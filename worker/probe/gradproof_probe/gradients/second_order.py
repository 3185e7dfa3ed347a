"""Is the backward itself differentiated rightly? Gradients of gradients, against the oracle's and against differences.

The classical fault is silent: backward uses an intermediate that forward computed without a graph, so the second
derivative lacks the terms through it (torch issues 58509, 76185, 104040). A backward that can't be differentiated and
says so is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.experiment import BackwardError, ForwardError, rms
from gradproof_probe.gradients.judging import Judge, Tolerance, differs, largest
from gradproof_probe.gradients.making import random_normal
from gradproof_probe.gradients.probing import UnstableError, kinked, random_direction, ridders
from gradproof_probe.gradients.situations import ORDINARY, Situation
from gradproof_probe.gradients.subject import NotApplicableError, Subject

# Second derivatives cancel more than first ones.
TOLERANCE: Final = Tolerance(1e-6, 1e-10)
DIRECTIONS: Final = 2
NOISE: Final = 1e-9  # of what second derivatives usually are here: rounding, not a derivative
HINT: Final = (
    "look for an intermediate that forward computed and saved (backward takes it for a constant): save inputs or "
    "outputs and compute it again in backward, or mark backward @once_differentiable"
)

Outcome = Literal["agrees", "not supported", "unclear", "disagrees"]


@dataclass(frozen=True, slots=True)
class SecondOrder:
    outcome: Outcome
    text: str = ""
    fault: bool = False
    cause: str = "wrong_second_order"
    numbers: dict[str, Any] = field(default_factory=dict)
    situation: Situation = ORDINARY


class _UnsupportedError(Exception):
    pass


def second_order_fault(
    subject: Subject, judge: Judge, further: Sequence[Situation] = (), *, oracle: bool
) -> SecondOrder:
    """Of the ordinary call, then of `further` ones. `fault`: a wrong second derivative was shown."""
    ordinary, natural = _second_order_in(subject, judge, ORDINARY, oracle=oracle)
    if ordinary.outcome != "agrees" or not oracle:
        return ordinary
    for situation in further:
        found, _ = _second_order_in(subject, judge, situation, natural, oracle=True)
        # What isn't finite at other values than the given ones is looked for elsewhere, with more care.
        if found.fault and math.isfinite(found.numbers["analytic"]):
            return found
    return ordinary


def _second_order_in(
    subject: Subject, judge: Judge, situation: Situation, natural: float = 0.0, *, oracle: bool
) -> tuple[SecondOrder, float]:
    """The outcome, and how large second derivatives are there. `natural`: how large they usually are."""
    try:
        found = _gradients_of_gradients(subject, situation, through=False)
    except _UnsupportedError as error:
        return SecondOrder("not supported", str(error)), 0.0
    except (ForwardError, BackwardError, NotApplicableError, RuntimeError) as error:
        return SecondOrder("not supported", f"differentiating the backward raises {error}"), 0.0
    names = [*subject.names, *(f"incoming gradient {index}" for index in range(len(found) - len(subject.names)))]
    size = largest(found)
    if oracle and subject.seen_through is not None:
        try:
            reference = _gradients_of_gradients(subject, situation, through=True)
        except (_UnsupportedError, ForwardError, BackwardError, NotApplicableError, RuntimeError):
            reference = None
        if reference is not None and not differs(found, reference, TOLERANCE, natural) and all(map(_finite, found)):
            return SecondOrder("agrees"), size
    return _judge(subject, judge, situation, (found, names, natural)), size


def _finite(item: torch.Tensor | None) -> bool:
    return item is None or bool(torch.isfinite(item).all())


def _gradients_of_gradients(subject: Subject, situation: Situation, *, through: bool) -> list[torch.Tensor | None]:
    """Of sum(w * gradient): with respect to each variable, then to each cotangent."""
    leaves = subject.leaves(subject.make(situation), None)
    given = [
        item.clone() if subject.writes and index in subject.positions else item for index, item in enumerate(leaves)
    ]
    outputs = subject.forward(given, through=through)
    chosen = [output for output in outputs if output.requires_grad and output.numel()]
    if not chosen or not all(bool(torch.isfinite(output).all()) for output in chosen):
        raise NotApplicableError("there is no finite output that requires grad")
    cotangents = [item.requires_grad_() for item in subject.cotangents(chosen, ORDINARY)]
    variables = [leaves[position] for position in subject.positions]
    try:
        first = torch.autograd.grad(chosen, variables, cotangents, create_graph=True, allow_unused=True)
        live = [(index, item) for index, item in enumerate(first) if item is not None and item.requires_grad]
        if any("Error" in type(item.grad_fn).__name__ for _, item in live):
            # What `once_differentiable` hangs on a gradient. It raises only where the engine comes by, and from here
            # no way leads on to the inputs: it would look like a derivative of zero.
            raise _UnsupportedError("backward is marked @once_differentiable")
        if not live:
            raise _UnsupportedError("the gradients that backward returns can't be differentiated")
        weights = [random_normal(item.detach(), subject.seed + 501 + index) for index, item in live]
        second = torch.autograd.grad([item for _, item in live], [*variables, *cotangents], weights, allow_unused=True)
    except RuntimeError as error:
        if "once_differentiable" in str(error) or "does not require grad" in str(error):
            raise _UnsupportedError(str(error).splitlines()[0][:200]) from error
        raise BackwardError(error) from error
    return [None if item is None else item.detach() for item in second]


def _judge(
    subject: Subject,
    judge: Judge,
    situation: Situation,
    asked: tuple[Sequence[torch.Tensor | None], Sequence[str], float],
) -> SecondOrder:
    """Differences of the first-order gradient along random directions decide."""
    found, names, natural = asked
    count = len(subject.positions)
    verdicts: list[bool | None] = []
    worst: dict[str, Any] = {}
    for number in range(DIRECTIONS):
        try:
            numeric, error, analytic, scale = _along(subject, judge, situation, (found, number))
        except (ForwardError, BackwardError, UnstableError, NotApplicableError, RuntimeError):
            return SecondOrder("unclear", "differences of the first-order gradient can't be taken here")
        size = max(scale, abs(numeric))
        # Both estimates have to be good before they are held against each other.
        if error > 1e-3 * size or size <= NOISE * natural or size == 0:
            verdicts.append(None)
            continue
        agree = math.isfinite(analytic) and abs(analytic - numeric) <= 10 * error + 1e-5 * size
        verdicts.append(agree)
        if not agree:
            worst = {"analytic": analytic, "numeric": numeric, "error_estimate": error}
    if verdicts and all(item is False for item in verdicts):
        missing = [name for name, item in zip(names[:count], found, strict=False) if item is None or not item.any()]
        text = "the backward is right, but differentiating it gives a wrong second derivative"
        if situation != ORDINARY:
            text += f" {situation.describe()}"
        if not math.isfinite(worst["analytic"]):
            text = "the backward is right, but differentiating it gives a second derivative that isn't finite"
        elif missing:
            text += f" (nothing comes back to {', '.join(missing[:3])})"
        text += (
            f": along a random direction {worst['analytic']:.6g}, by differences of the gradient "
            f"{worst['numeric']:.6g}; {HINT}"
        )
        return SecondOrder("disagrees", text, fault=True, numbers=worst, situation=situation)
    if any(item is None for item in verdicts):
        return SecondOrder("unclear", "differences of the first-order gradient are too imprecise here")
    return SecondOrder("agrees")


def _along(
    subject: Subject, judge: Judge, situation: Situation, asked: tuple[Sequence[torch.Tensor | None], int]
) -> tuple[float, float, float, float]:
    """(numeric, its error, analytic, the size of its terms) along one direction of variables and cotangents."""
    found, number = asked
    generator = torch.Generator().manual_seed(subject.seed + 77 + number)
    made = subject.make(situation)
    base = subject.pull(situation)
    live = [index for index, item in enumerate(base.gradients) if item is not None]
    weights = {index: random_normal(base.gradients[index], subject.seed + 501 + index) for index in live}
    variables = {
        position: random_direction(made[position], generator, rms(made[position])) for position in subject.positions
    }
    cotangents = [random_direction(item, generator, 1.0) for item in base.cotangents]

    def phi(step: float) -> tuple[float, float]:
        moved = [item + step * variables[index] if index in variables else item for index, item in enumerate(made)]
        leaves = subject.leaves(moved, None)
        outputs = subject.forward(subject.given(leaves, ORDINARY))
        if len(outputs) != len(base.cotangents):
            raise UnstableError("the number of outputs changes")
        pulled = subject.pull_from(
            outputs, leaves, ORDINARY, [v + step * d for v, d in zip(base.cotangents, cotangents, strict=True)]
        )
        total = size = 0.0
        for index in live:
            gradient = pulled.gradients[index]
            if gradient is None:
                raise UnstableError("a gradient disappears")
            terms = _real(weights[index].conj() * gradient)
            total += float(terms.sum())
            size += float(terms.abs().sum())
        if not math.isfinite(total):
            raise UnstableError("a gradient isn't finite close to the inputs")
        return total, size

    analytic = square = 0.0
    directions = [*variables.values(), *cotangents]
    for item, direction in zip(found, directions, strict=False):
        if item is not None:
            terms = _real(item.conj() * direction)
            analytic += float(terms.sum())
            square += float(terms.square().sum())
    best, error = 0.0, math.inf
    for step in (1e-2, 1e-4, 2e-6):
        value, estimate = ridders(phi, step, judge.rounding)
        if estimate < error:
            best, error = value, estimate
        if error <= 1e-6 * max(abs(best), math.sqrt(square) if math.isfinite(square) else 0.0):
            break
    scale = math.sqrt(square) if math.isfinite(square) else abs(best)
    if not abs(analytic - best) <= 10 * error + 1e-5 * max(scale, abs(best)) and kinked(
        phi, 1.0, judge.rounding, max(scale, abs(best))
    ):
        # A corner of the gradient: differences average both slopes, and any of them is right.
        return best, math.inf, analytic, scale
    return best, error, analytic, scale


def _real(product: torch.Tensor) -> torch.Tensor:
    return (product.real if product.is_complex() else product).detach().to(torch.float64)
