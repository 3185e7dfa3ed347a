"""What a case is, and how a gradient is pulled out of a Function and out of plain torch code.

A case knows the situation in which its gradient is wrong, so that `shows_fault` can prove it; no checker that is
measured may be told of it. `ordinary` is all that a checker gets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.unseen.plain import PLAIN

Inputs = tuple[Any, ...]
Cotangent = Callable[[Sequence[Tensor]], list[Tensor]]
# Every fault here is a factor or a lost term: 0.1 % of the largest value is far above rounding and far below them.
VISIBLE = 1e-3


def cotangents(outputs: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """One random cotangent an output, from seeds."""
    made = []
    for position, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(5 + seed + position)
        drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        if output.is_complex():
            drawn = torch.complex(drawn, torch.randn(output.shape, generator=generator, dtype=torch.float64))
        made.append(drawn.to(output.dtype))
    return made


@dataclass(frozen=True, slots=True)
class How:
    """How the gradient is asked for: with which cotangents, through which outputs (all if None), in which context."""

    cotangent: Cotangent = cotangents
    used: tuple[int, ...] | None = None
    create_graph: bool = False
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


PLAINLY = How()


def detached(inputs: Inputs) -> Inputs:
    return tuple(v.detach() if isinstance(v, Tensor) else v for v in inputs)


def with_grad(inputs: Inputs, differentiable: Sequence[int]) -> Inputs:
    """Copies of the arguments in the same layout, of which these require gradients."""
    return tuple(
        v.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        if i in differentiable and isinstance(v, Tensor)
        else v
        for i, v in enumerate(inputs)
    )


def tuple_of(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def pull(
    function: Callable[..., Any], inputs: Inputs, differentiable: Sequence[int], how: How = PLAINLY
) -> list[Tensor]:
    """The gradients of the inputs at these positions, in the layout that the inputs have; zeros for None."""
    arguments = tuple(v.requires_grad_() if i in differentiable else v for i, v in enumerate(detached(inputs)))
    leaves = [arguments[i] for i in differentiable if isinstance(arguments[i], Tensor)]
    with how.context():
        outputs = tuple_of(function(*arguments))
        chosen = [outputs[i] for i in (range(len(outputs)) if how.used is None else how.used)]
        found = torch.autograd.grad(
            chosen, leaves, how.cotangent(chosen), create_graph=how.create_graph, allow_unused=True
        )
    return [
        torch.zeros_like(leaf) if g is None else g.detach().to(torch.complex128 if g.is_complex() else torch.float64)
        for g, leaf in zip(found, leaves, strict=True)
    ]


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest value of that gradient; infinite if a value is not finite."""
    worst = 0.0
    for left, right in zip(found, expected, strict=True):
        if not bool(torch.isfinite(torch.view_as_real(left) if left.is_complex() else left).all()):
            return float("inf")
        if left.numel():
            worst = max(worst, float((left - right).abs().max() / (right.abs().max() + 1e-9)))
    return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A Function with ordinary inputs.

    Wrong ones have a `trigger` (inputs), a `how` or both, or else a `proof` of their own. `indirect`: what the fault
    depends on stands in no plain comparison in the source; it follows from arithmetic, a table or a helper.
    """

    function: Any
    inputs: Callable[[], Inputs]
    reference: Callable[..., Any]
    differentiable: tuple[int, ...]
    trigger: Callable[[], Inputs] | None = None
    how: How = PLAINLY
    proof: Callable[[Case], bool] | None = None
    indirect: bool = False

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def kind(self) -> str:
        """The module that the Function stands in."""
        return str(self.function.__module__).rpartition(".")[2]

    def ordinary(self) -> Inputs:
        """What a checker is given: copies, with gradients wanted."""
        return with_grad(self.inputs(), self.differentiable)

    def error(self, inputs: Inputs, how: How = PLAINLY) -> float:
        """How far the Function's gradient is from that of plain torch code."""
        expected = pull(self.reference, inputs, self.differentiable, how)
        return distance(pull(self.function.apply, inputs, self.differentiable, how), expected)

    def shows_fault(self) -> bool:
        """Whether the gradient really differs from plain torch code's in the situation of this case."""
        if self.proof is not None:
            return self.proof(self)
        return self.error((self.trigger or self.inputs)(), self.how) > VISIBLE


@dataclass(slots=True)
class Cases:
    """Collects the cases of one set. What a case doesn't say comes from `PLAIN`, by the Function's name."""

    all_wrong: list[Case] = field(default_factory=list)
    all_right: list[Case] = field(default_factory=list)

    def wrong(self, function: Any, **given: Any) -> None:
        self.all_wrong.append(_case(function, given))

    def right(self, function: Any, **given: Any) -> None:
        self.all_right.append(_case(function, given))


def _case(function: Any, given: dict[str, Any]) -> Case:
    original = function.__name__.removeprefix("Right").rstrip("0123456789")
    inputs, differentiable, reference = PLAIN[original]
    return Case(
        **{"inputs": inputs, "differentiable": differentiable, "reference": reference, **given}, function=function
    )
