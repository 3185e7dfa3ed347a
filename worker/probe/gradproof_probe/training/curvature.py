"""Hessian-vector products: reverse over reverse against differences of the gradient. One number against one number.

For a random vector u over inputs and parameters, and a random weight w, w.(H u) by autograd has to be the derivative of
w.g(x + t u) at t = 0, where g is the gradient that autograd gives. That holds whatever the forward computes, as long as
g is the gradient of something; so the first order has to be right before this says anything. It must not judge causes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.breaks import Freeze
from gradproof_probe.gradients.experiment import BackwardError, Experiment, Output, differentiable, rms
from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.gradients.probing import (
    BEYOND,
    ROUNDING,
    STEPS,
    UnstableError,
    agrees_closely,
    kinked,
    random_direction,
    random_like,
    ridders,
)

# Second derivatives cancel more than first ones (as in `gradients.second_order`).
RELATIVE: Final = 1e-5
PRECISE: Final = 1e-3  # of the size: what an error estimate must be below for agreement to mean anything
_ROUNDING: Final = 10 * ROUNDING[torch.float64]  # of a gradient: two passes, and sums over what is summed

Outcome = Literal["agrees", "disagrees", "kink", "unclear", "flat", "not finite"]
Inside = Callable[[], AbstractContextManager[Any]]


class NotTwiceError(Exception):
    """The gradient can't be differentiated: autograd says so, in these words."""


@dataclass(frozen=True, slots=True)
class Product:
    """`analytic` and `numeric` are w.(H u); `size` that of the terms of the analytic one."""

    outcome: Outcome
    analytic: float = 0.0
    numeric: float = 0.0
    error: float = 0.0
    size: float = 0.0
    without: tuple[str, ...] = ()  # variables into which nothing came back


def compare(
    experiment: Experiment, number: int, *, inside: Inside = nullcontext, frozen: Freeze | None = None
) -> Product:
    """One pair (u, w). Raises `ForwardError`, `BackwardError`, `UnstableError`, `NotTwiceError`.

    `inside` surrounds every forward; `frozen` is told which of them is at the base point.
    """
    generator = torch.Generator().manual_seed(experiment.seed + 131 + number)
    experiment.put_back()
    if frozen is not None:
        frozen.start(recording=True)
    with inside():
        outputs = differentiable(experiment.run())
    if not outputs:
        raise NotTwiceError("no output can be differentiated")
    cotangents = [random_like(item.value, generator) for item in outputs]
    # `once_differentiable` only hangs its error on a gradient if what came in requires grad.
    first = _gradients(experiment, outputs, [item.clone().requires_grad_() for item in cotangents])
    names = [variable.name for variable in experiment.variables]
    live = [index for index, item in enumerate(first) if item is not None]
    weights = {index: random_like(_of(first, index), generator) for index in live}
    directions = [random_direction(item.base, generator, rms(item.base)) for item in experiment.variables]
    second = _second(experiment, first, weights)

    def phi(step: float) -> tuple[float, float]:
        experiment.place(directions, step)
        if frozen is not None:
            frozen.start(recording=False)
        with inside():
            moved = differentiable(experiment.run())
        if [tuple(item.value.shape) for item in moved] != [tuple(item.value.shape) for item in outputs]:
            raise UnstableError("the outputs change between evaluations")
        found = experiment.gradients(moved, cotangents)
        total = size = 0.0
        for index, weight in weights.items():
            gradient = found[index]
            if gradient is None:
                raise UnstableError("a gradient disappears")
            terms = _real(weight, gradient)
            total += float(terms.sum())
            size += float(terms.abs().sum())
        if not math.isfinite(total):
            raise UnstableError("a gradient isn't finite close to the inputs")
        return total, size

    analytic = square = 0.0
    for item, direction in zip(second, directions, strict=True):
        if item is not None:
            terms = _real(item, direction)
            analytic += float(terms.sum())
            square += float(terms.square().sum())
    try:
        return _held_together(phi, analytic, math.sqrt(square), _without(second, names))
    finally:
        experiment.put_back()


def _held_together(
    phi: Callable[[float], tuple[float, float]], analytic: float, size: float, without: tuple[str, ...]
) -> Product:
    if not math.isfinite(analytic):
        return Product("not finite", analytic, size=size, without=without)
    numeric, error = 0.0, math.inf

    def enough(value: float, estimate: float) -> bool:
        return agrees_closely(analytic, value, estimate, RELATIVE * max(size, abs(value)))

    for first_step in STEPS:
        value, estimate = ridders(phi, first_step, _ROUNDING, enough)
        if estimate < error:
            numeric, error = value, estimate
        if error <= 1e-6 * max(size, abs(numeric)) or enough(numeric, error):
            break
    largest = max(size, abs(numeric))
    gradient_size = phi(0.0)[1]
    if largest <= 1e-9 * gradient_size or largest == 0:
        return Product("flat", analytic, numeric, error, size, without)
    agrees = abs(analytic - numeric) <= BEYOND * error + RELATIVE * largest
    if agrees and error <= PRECISE * largest:
        return Product("agrees", analytic, numeric, error, size, without)
    if kinked(phi, 1.0, _ROUNDING, largest):
        return Product("kink", analytic, numeric, error, size, without)
    if agrees or error > PRECISE * largest:
        return Product("unclear", analytic, numeric, error, size, without)
    for step in (STEPS[-1] * 8, STEPS[-1] / 4):  # seen by every step that can see it, not by the best one alone
        other, other_error = ridders(phi, step, _ROUNDING)
        if abs(analytic - other) <= BEYOND * other_error + RELATIVE * largest:
            return Product("unclear", analytic, numeric, error, size, without)
    return Product("disagrees", analytic, numeric, error, size, without)


def _gradients(
    experiment: Experiment, outputs: Sequence[Output], cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """With the graph of the backward."""
    try:
        found = torch.autograd.grad(
            [item.value for item in outputs],
            [variable.leaf for variable in experiment.variables],
            list(cotangents),
            create_graph=True,
            allow_unused=True,
        )
    except RuntimeError as error:
        raise BackwardError(error) from error
    return list(found)


def _second(
    experiment: Experiment, first: Sequence[torch.Tensor | None], weights: dict[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradient of w.g; None where nothing comes back, everywhere if g depends on nothing."""
    live = [(index, item) for index, item in enumerate(first) if item is not None and item.requires_grad]
    if _refuses(item for _, item in live):
        raise NotTwiceError(
            "a backward is marked @once_differentiable (where the way leads on elsewhere, autograd raises nothing and "
            "leaves its part out)"
        )
    if not live:
        return [None] * len(experiment.variables)
    try:
        return list(
            torch.autograd.grad(
                [item for _, item in live],
                [variable.leaf for variable in experiment.variables],
                [weights[index] for index, _ in live],
                allow_unused=True,
            )
        )
    except RuntimeError as error:
        raise NotTwiceError(str(error).splitlines()[0][:300]) from error


def _refuses(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether a node of their graph is what `once_differentiable` hangs there: it only raises if it is met."""
    return any("Error" in type(node).__name__ for node in nodes_behind(gradients))


def _without(second: Sequence[torch.Tensor | None], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, item in zip(names, second, strict=True) if item is None or not bool(item.any()))


def _of(first: Sequence[torch.Tensor | None], index: int) -> torch.Tensor:
    item = first[index]
    assert item is not None
    return item.detach()


def _real(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    product = first.detach().conj() * second.detach()
    real = product.real if product.is_complex() else product
    return real.to(torch.float64)
