"""Proofs of faults that take more than one call with certain inputs: two calls, several backwards, a jvp.

Each answers whether the case's Function really differs from plain torch code. They write to inputs and meet state that
a Function keeps between calls, so each has to run in a process of its own (`benchmarks.unseen.children`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from benchmarks.unseen.cases import (
    VISIBLE,
    Case,
    Cotangent,
    How,
    Inputs,
    cotangents,
    detached,
    distance,
    pull,
    with_grad,
)
from benchmarks.unseen.values import normal, with_minus_infinity

Proof = Callable[[Case], bool]
Make = Callable[[], Inputs]

# ---- ways to ask for a gradient

RECORDED = How(create_graph=True)


def constant(value: float) -> How:
    return How(cotangent=lambda outputs: [torch.full_like(o, value) for o in outputs])


def expanded(value: float) -> How:
    """One value with strides of zero, as autograd makes it for a sum."""
    return How(cotangent=lambda outputs: [torch.tensor(value, dtype=torch.float64).expand_as(o) for o in outputs])


def scaled(by: float) -> How:
    return How(cotangent=lambda outputs: [g * by for g in cotangents(outputs)])


def all_positive() -> How:
    return How(cotangent=lambda outputs: [g.abs() + 0.1 for g in cotangents(outputs)])


def all_negative() -> How:
    return How(cotangent=lambda outputs: [-g.abs() - 0.1 for g in cotangents(outputs)])


def every_row(step: int) -> How:
    """Zeros but for every `step`th row."""

    def cotangent(outputs: Sequence[Tensor]) -> list[Tensor]:
        made = cotangents(outputs)
        for g in made:
            rows = g.reshape(-1, g.shape[-1]) if g.dim() > 1 else g.unsqueeze(-1)
            rows[torch.arange(len(rows)) % step != 0] = 0
        return made

    return How(cotangent=cotangent)


def every_third(dimension: int) -> How:
    """Zeros but for every third position in this dimension."""

    def keep(g: Tensor) -> Tensor:
        return ((torch.arange(g.shape[dimension]) % 3 == 1) * g.movedim(dimension, -1)).movedim(-1, dimension)

    made: Cotangent = lambda outputs: [keep(g) for g in cotangents(outputs)]  # noqa: E731 -- one expression, typed
    return How(cotangent=made)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


@contextlib.contextmanager
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def medium_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def environment_variable() -> Iterator[None]:
    os.environ["FUSED_NORM_BACKWARD"] = "1"
    try:
        yield
    finally:
        del os.environ["FUSED_NORM_BACKWARD"]


def anomaly_detection() -> contextlib.AbstractContextManager[None]:
    context: contextlib.AbstractContextManager[None] = torch.autograd.set_detect_anomaly(mode=True)
    return context


# ---- proofs


def after_another_call(first: Make, second: Make) -> Proof:
    """The gradient of the first tensor in the second call, after one call with other arguments."""

    def proof(case: Case) -> bool:
        pull(case.function.apply, first(), (0,))
        found = pull(case.function.apply, second(), (0,))
        return distance(found, pull(case.reference, second(), (0,))) > VISIBLE

    return proof


def several_forwards(count: int, *, last_first: bool = False) -> Proof:
    """`count` forwards first, then their backwards; right only if every gradient is its own forward's."""

    def proof(case: Case) -> bool:
        runs = [
            tuple(v * (1 + 0.37 * k) if isinstance(v, Tensor) and v.is_floating_point() else v for v in case.inputs())
            for k in range(count)
        ]
        given = [with_grad(run, (0,)) for run in runs]
        outputs = [case.function.apply(*arguments) for arguments in given]
        worst = 0.0
        for k in reversed(range(count)) if last_first else range(count):
            cotangent = cotangents([outputs[k]])
            found = torch.autograd.grad(outputs[k], given[k][0], cotangent)
            x, *rest = with_grad(runs[k], (0,))
            worst = max(worst, distance(found, torch.autograd.grad(case.reference(x, *rest), x, cotangent)))
        return worst > VISIBLE

    return proof


def two_dimensions(case: Case) -> bool:
    """Two forwards with different `dim` before the first backward."""
    first, second = (normal(5, 8).requires_grad_() for _ in range(2))
    output, _ = case.function.apply(first, 0), case.function.apply(second, 1)
    cotangent = normal(5, 8, seed=9)
    found = torch.autograd.grad(output, first, cotangent)
    return distance(found, torch.autograd.grad(case.reference(first, 0), first, cotangent)) > VISIBLE


def backward_twice(case: Case) -> bool:
    """A second backward through the same graph, with another cotangent."""
    arguments = case.ordinary()
    leaves = [arguments[i] for i in case.differentiable]
    output = case.function.apply(*arguments)
    first, second = cotangents([output], seed=1), cotangents([output], seed=40)
    torch.autograd.grad(output, leaves, first, retain_graph=True)
    found = torch.autograd.grad(output, leaves, second)
    return distance(found, torch.autograd.grad(case.reference(*arguments), leaves, second)) > VISIBLE


def same_tensor(make: Make, places: tuple[int, ...]) -> Proof:
    """One tensor in several places of a call: its gradient is the sum of theirs."""

    def proof(case: Case) -> bool:
        answers = []
        for function in (case.function.apply, case.reference):
            arguments = list(make())
            leaf = arguments[places[0]].clone().requires_grad_()
            for place in places:
                arguments[place] = leaf
            output = function(*arguments)
            answers.append(torch.autograd.grad(output, leaf, cotangents([output])))
        return distance(*answers) > VISIBLE

    return proof


def written_between(slot: int, *, output: bool = False) -> Proof:
    """An input (or the output) changes between forward and backward; a refusal by autograd is no fault."""

    def proof(case: Case) -> bool:
        arguments = [
            v.clone().requires_grad_(i in case.differentiable) if isinstance(v, Tensor) and v.is_floating_point() else v
            for i, v in enumerate(case.inputs())
        ]
        untouched = case.ordinary()
        leaves, untouched_leaves = ([given[i] for i in case.differentiable] for given in (arguments, untouched))
        result, expected = case.function.apply(*arguments), case.reference(*untouched)
        cotangent = cotangents([result])
        if output:
            result, expected = result.mul_(3.0), expected * 3.0
        else:
            changed = arguments[slot]
            with torch.no_grad():
                changed.mul_(3.0) if changed.is_floating_point() else changed.fill_(0)
        try:
            found = torch.autograd.grad(result, leaves, cotangent)
        except RuntimeError:
            return False
        return distance(found, torch.autograd.grad(expected, untouched_leaves, cotangent)) > VISIBLE

    return proof


def under_autocast(make: Make | None = None, *, single: bool = True) -> Proof:
    """Under autocast to bfloat16, far further off than plain torch code under autocast is."""

    def proof(case: Case) -> bool:
        given = tuple(v.float() if single and isinstance(v, Tensor) else v for v in (make or case.inputs)())
        tensors = [i for i, v in enumerate(given) if isinstance(v, Tensor)]
        autocast = How(context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
        expected = pull(case.reference, given, tensors)
        try:
            found = pull(case.function.apply, given, tensors, autocast)
            rounded = pull(case.reference, given, tensors, autocast)
        except RuntimeError:
            return False
        return distance(found, expected) > 5 * distance(rounded, expected) + 0.05

    return proof


def gradient_kept(case: Case) -> bool:
    """The gradients of a first call, looked at after a second call."""
    first = None
    for k in range(2):
        arguments = tuple(
            (v * (1 + 0.5 * k)).requires_grad_() if i in case.differentiable else v for i, v in enumerate(case.inputs())
        )
        output = case.function.apply(*arguments)
        leaves = [arguments[i] for i in case.differentiable]
        found = torch.autograd.grad(output, leaves, cotangents([output], seed=k))
        first = first or found
    return first is not None and distance(first, pull(case.reference, case.inputs(), case.differentiable)) > VISIBLE


def six_gradients_kept(case: Case) -> bool:
    """The first of six gradients of a cumulative sum, looked at after the last."""
    x = normal(5, 8).requires_grad_()
    found = [torch.autograd.grad(case.function.apply(x, -1), x, normal(5, 8, seed=1 + k))[0] for k in range(6)]
    expected = torch.autograd.grad(case.reference(x, -1), x, normal(5, 8, seed=1))
    return distance(found[:1], expected) > VISIBLE


def finite_outputs(case: Case) -> bool:
    """Inputs of minus infinity, with the outputs that are infinite taken out of the loss."""
    given = (with_minus_infinity(5, 8),)
    found, expected = (
        pull(lambda x, function=function: function(x).nan_to_num(neginf=0.0), given, (0,))
        for function in (case.function.apply, case.reference)
    )
    return distance(found, expected) > VISIBLE


def after_calls(calls: int) -> Proof:
    """The worst gradient among so many calls one after another."""

    def proof(case: Case) -> bool:
        worst = 0.0
        for k in range(calls):
            given = tuple(v * (1 + 0.1 * k) if i in case.differentiable else v for i, v in enumerate(case.inputs()))
            worst = max(worst, case.error(given))
        return worst > VISIBLE

    return proof


def second_order(make: Make) -> Proof:
    """Second derivatives: with respect to the inputs and to the cotangent."""

    def proof(case: Case) -> bool:
        answers = []
        for function in (case.function.apply, case.reference):
            arguments = with_grad(make(), case.differentiable)
            leaves = [arguments[i] for i in case.differentiable]
            output = function(*arguments)
            cotangent = cotangents([output])[0].requires_grad_()
            first = torch.autograd.grad(output, leaves, cotangent, create_graph=True)
            total = torch.stack([(g * c).sum() for g, c in zip(first, cotangents(first, seed=30), strict=True)]).sum()
            wanted = [*leaves, cotangent]
            second = torch.autograd.grad(total, wanted, allow_unused=True)
            answers.append([torch.zeros_like(w) if h is None else h for w, h in zip(wanted, second, strict=True)])
        return distance(*answers) > VISIBLE

    return proof


def wrong_jvp(make: Make, moved: tuple[int, ...]) -> Proof:
    """The jvp, with tangents for the inputs in `moved` only."""

    def proof(case: Case) -> bool:
        answers = []
        for function in (case.function.apply, case.reference):
            with forward_ad.dual_level():
                arguments = [
                    forward_ad.make_dual(v.clone(), normal(*v.shape, seed=60 + i)) if i in moved else v
                    for i, v in enumerate(make())
                ]
                output = function(*arguments)
                tangent = forward_ad.unpack_dual(output).tangent
                answers.append([torch.zeros_like(output) if tangent is None else tangent.clone()])
        return distance(*answers) > VISIBLE

    return proof


def first_input_as(dtype: torch.dtype, slot: int) -> Proof:
    """The gradient of the input at `slot` where the first input has another dtype."""

    def proof(case: Case) -> bool:
        given = tuple(v.to(dtype) if i == 0 else v for i, v in enumerate(detached(case.inputs())))
        found = pull(case.function.apply, given, (slot,))
        return distance(found, pull(case.reference, given, (slot,))) > VISIBLE

    return proof
