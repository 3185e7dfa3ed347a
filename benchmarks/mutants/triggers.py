"""Ground truth: in which situation a wrong Function shows itself, performed on the right Function and the wrong one.

Each trigger draws inputs, pulls cotangents back through both, and says by how much the gradients differ. None of them
is used by a check: they know the answer because the mutant says where to look, and they hold a right Function in hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.mutants.draws import Inputs
from benchmarks.mutants.register import Function, Right

# Right and wrong do the same operations in the same order up to the slip: what differs by more is the slip.
EXACT: Final = 1e-9
SECOND: Final = 1e-7  # two backwards accumulate in another order where something was detached
SINGLE: Final = 1e-2  # in float32, and for conditions on it: the slips behind such conditions are factors
HALF: Final = 1e-1

Change = Callable[[Tensor], Tensor]
Trigger = Callable[[Right, Function], bool]


def leaves(inputs: Inputs, dtype: torch.dtype | None = None, only: Sequence[int] | None = None) -> list[Any]:
    """Copies that require grad (`only` those positions); floating ones cast. Memory layout is kept."""
    copies: list[Any] = []
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            copies.append(value)
            continue
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        copy.copy_(value.detach())
        copy = copy.to(dtype) if dtype is not None and not value.is_complex() else copy
        wanted = value.requires_grad if only is None else position in only
        copies.append(copy.requires_grad_(wanted))
    return copies


def call(right: Right, function: Any, arguments: Sequence[Any]) -> list[Tensor]:
    """The outputs that carry a gradient. What is overwritten in place is handed over as a copy of the leaf."""
    handed = [
        value.clone() if right.in_place and isinstance(value, torch.Tensor) and value.requires_grad else value
        for value in arguments
    ]
    found = function.apply(*handed)
    outputs = found if isinstance(found, tuple) else (found,)
    return [output for output in outputs if output.requires_grad]


def cotangents(outputs: Sequence[Tensor], change: Change | None = None) -> list[Tensor]:
    """Random ones, the same for outputs of the same shapes."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for output in outputs:
        real = torch.float64 if not output.is_complex() else torch.complex128
        value = torch.randn(output.shape, dtype=real, generator=generator).to(output.dtype)
        made.append(value if change is None else change(value))
    return made


def required(arguments: Sequence[Any]) -> list[Tensor]:
    return [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]


Gradients = list[Tensor | None]


def pull(right: Right, function: Any, arguments: Sequence[Any], change: Change | None = None) -> Gradients:
    """The gradients for what requires grad, at random cotangents."""
    outputs = call(right, function, arguments)
    return list(torch.autograd.grad(outputs, required(arguments), cotangents(outputs, change), allow_unused=True))


def differ(one: Sequence[Tensor | None], two: Sequence[Tensor | None], tolerance: float) -> bool:
    """Whether any differs by more than this share of its largest value. Not finite right ones tell nothing."""
    for expected, found in zip(one, two, strict=True):
        if expected is None and found is None:
            continue
        if expected is None or found is None:
            present = expected if expected is not None else found
            assert present is not None
            if bool(_dense(present).abs().max() > 0):
                return True
            continue
        a, b = _dense(expected), _dense(found)
        if not a.numel() or not bool(torch.isfinite(torch.view_as_real(a) if a.is_complex() else a).all()):
            continue
        scale = float(a.abs().max())
        error = float((a - b).abs().nan_to_num(nan=torch.inf).max())
        if error > tolerance * scale and error > 1e-12:
            return True
    return False


def _dense(value: Tensor) -> Tensor:
    value = value.detach()
    value = value.to_dense() if value.layout != torch.strided else value
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


# -- the situations


def _both(right: Right, wrong: Function, arguments: Callable[[], list[Any]], change: Change | None = None) -> bool:
    return differ(pull(right, right.function, arguments(), change), pull(right, wrong, arguments(), change), EXACT)


def _sizes(right: Right, sizes: Sequence[int], regime: str = "normal") -> Iterator[Inputs]:
    return (right.inputs(size, regime, seed) for size, seed in itertools.product(sizes, (0, 1)))


def ordinary(right: Right, wrong: Function) -> bool:
    """At ordinary inputs, contiguous random cotangents, everything in float64."""
    return any(_both(right, wrong, partial(leaves, inputs)) for inputs in _sizes(right, (30, 1000)))


def sizes(right: Right, wrong: Function) -> bool:
    """At one of many sizes from 5 to 5,000 elements."""
    drawn = _sizes(right, (5, 12, 25, 29, 31, 33, 50, 70, 1000, 5000))
    return any(_both(right, wrong, partial(leaves, inputs)) for inputs in drawn)


def region(right: Right, wrong: Function) -> bool:
    """Where inputs are thirty times as large as usual, or many."""
    regime = "large" if "large" in right.regimes else "normal"
    drawn = _sizes(right, (1000, 5000), regime)
    return any(_both(right, wrong, partial(leaves, inputs)) for inputs in drawn)


def batch_of_one(right: Right, wrong: Function) -> bool:
    """One sample."""
    inputs = right.inputs(30, batch=1)
    return _both(right, wrong, lambda: leaves(inputs))


def input_layout(right: Right, wrong: Function) -> bool:
    """The same values in other memory."""
    inputs = right.inputs(30, "strided")
    return _both(right, wrong, lambda: leaves(inputs))


def _transposed(value: Tensor) -> Tensor:
    if value.ndim >= 2:
        return value.mT.contiguous().mT
    return torch.stack([value, value.flip(0) if value.ndim else value], -1)[..., 0]


def grad_layout(right: Right, wrong: Function) -> bool:
    """A cotangent that isn't contiguous."""
    return _both(right, wrong, lambda: leaves(right.inputs(30)), _transposed)


def grad_expanded(right: Right, wrong: Function) -> bool:
    """A cotangent as `sum().backward()` makes it: one number with strides of zero."""
    return _both(right, wrong, lambda: leaves(right.inputs(30)), lambda value: value.flatten()[0].expand(value.shape))


def grad_large(right: Right, wrong: Function) -> bool:
    """A cotangent a thousand times as large."""
    return _both(right, wrong, lambda: leaves(right.inputs(30)), lambda value: 1000 * value)


def subset(right: Right, wrong: Function) -> bool:
    """One input alone, or all but one, require grad."""
    inputs = right.inputs(30)
    floating = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    chosen = [[i] for i in floating] + [[j for j in floating if j != i] for i in floating if len(floating) > 2]
    return any(_both(right, wrong, partial(leaves, inputs, only=only)) for only in chosen)


def second_order(right: Right, wrong: Function) -> bool:
    """The gradient of the gradient."""

    def second(function: Any) -> Gradients:
        arguments = leaves(right.inputs(30))
        outputs = call(right, function, arguments)
        given = [value.requires_grad_() for value in cotangents(outputs)]
        first = torch.autograd.grad(outputs, required(arguments), given, create_graph=True, allow_unused=True)
        live = [value for value in first if value is not None and value.requires_grad]
        targets = [*required(arguments), *given]
        if not live:
            return [None] * len(targets)
        return list(torch.autograd.grad(live, targets, cotangents(live), allow_unused=True))

    return not right.once and differ(second(right.function), second(wrong), SECOND)


def grad_mutated(right: Right, wrong: Function) -> bool:
    """The cotangent has other values after backward than before."""
    arguments = leaves(right.inputs(30))
    outputs = call(right, wrong, arguments)
    given = cotangents(outputs)
    before = [value.clone() for value in given]
    torch.autograd.grad(outputs, required(arguments), given, allow_unused=True)
    return differ(before, given, EXACT)


def saved_mutated(right: Right, wrong: Function) -> bool:
    """An input or an output has other values after backward than before."""
    arguments = leaves(right.inputs(30))
    outputs = call(right, wrong, arguments)
    watched = [*required(arguments), *outputs]
    before = [value.detach().clone() for value in watched]
    torch.autograd.grad(outputs, required(arguments), cotangents(outputs), allow_unused=True)
    return differ(before, [value.detach() for value in watched], EXACT)


def interleaved(right: Right, wrong: Function) -> bool:
    """Forward at x, forward at y, backward for x."""

    def first_of_two(function: Any) -> Gradients:
        arguments = leaves(right.inputs(30))
        outputs = call(right, function, arguments)
        call(right, function, leaves(right.inputs(30, seed=1)))
        return list(torch.autograd.grad(outputs, required(arguments), cotangents(outputs), allow_unused=True))

    return differ(first_of_two(right.function), first_of_two(wrong), EXACT)


def twice(right: Right, wrong: Function) -> bool:
    """Two backward passes over one graph."""

    def second_pass(function: Any) -> Gradients:
        arguments = leaves(right.inputs(30))
        outputs = call(right, function, arguments)
        given = cotangents(outputs)
        torch.autograd.grad(outputs, required(arguments), given, retain_graph=True, allow_unused=True)
        return list(torch.autograd.grad(outputs, required(arguments), given, allow_unused=True))

    return differ(second_pass(right.function), second_pass(wrong), EXACT)


def _in(dtype: torch.dtype, tolerance: float) -> Trigger:
    def in_dtype(right: Right, wrong: Function) -> bool:
        inputs = right.inputs(30)
        return differ(
            pull(right, right.function, leaves(inputs, dtype)), pull(right, wrong, leaves(inputs, dtype)), tolerance
        )

    return in_dtype


def autocast(right: Right, wrong: Function) -> bool:
    """Forward under autocast to bfloat16, float32 inputs."""

    def under(function: Any) -> Gradients:
        arguments = leaves(right.inputs(30), torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = call(right, function, arguments)
        return list(torch.autograd.grad(outputs, required(arguments), cotangents(outputs), allow_unused=True))

    return differ(under(right.function), under(wrong), HALF)


def aliased(right: Right, wrong: Function) -> bool:
    """One tensor as two inputs."""

    def same(function: Any, one: int, two: int) -> Gradients:
        arguments = leaves(right.inputs(30))
        arguments[two] = arguments[one]
        outputs = call(right, function, arguments)
        return list(torch.autograd.grad(outputs, [arguments[one]], cotangents(outputs), allow_unused=True))

    inputs = right.inputs(30)
    floating = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    pairs = [(i, j) for i, j in itertools.combinations(floating, 2) if inputs[i].shape == inputs[j].shape]
    return any(differ(same(right.function, *pair), same(wrong, *pair), EXACT) for pair in pairs)


def unused_output(right: Right, wrong: Function) -> bool:
    """Backward from one output of several."""

    def from_one(function: Any, which: int) -> Gradients:
        arguments = leaves(right.inputs(30))
        outputs = call(right, function, arguments)
        used = [outputs[which]]
        return list(torch.autograd.grad(used, required(arguments), cotangents(used), allow_unused=True))

    count = len(call(right, right.function, leaves(right.inputs(30))))
    return count > 1 and any(differ(from_one(right.function, i), from_one(wrong, i), EXACT) for i in range(count))


def changed_later(right: Right, wrong: Function) -> bool:
    """An input is changed in place between forward and backward: a right Function refuses, or still knows the old."""
    arguments = leaves(right.inputs(30))
    expected = pull(right, right.function, leaves(right.inputs(30)))
    outputs = call(right, wrong, arguments)
    with torch.no_grad():
        for value in required(arguments):
            value.mul_(1.5).add_(0.1)
    found = torch.autograd.grad(outputs, required(arguments), cotangents(outputs), allow_unused=True)
    return differ(expected, found, EXACT)


TRIGGERS: Final[dict[str, Trigger]] = {
    "ordinary": ordinary,
    "sizes": sizes,
    "region": region,
    "batch of one": batch_of_one,
    "input layout": input_layout,
    "grad layout": grad_layout,
    "grad expanded": grad_expanded,
    "grad large": grad_large,
    "subset": subset,
    "second order": second_order,
    "grad mutated": grad_mutated,
    "saved mutated": saved_mutated,
    "interleaved": interleaved,
    "twice": twice,
    "float32": _in(torch.float32, SINGLE),
    "bfloat16": _in(torch.bfloat16, HALF),
    "autocast": autocast,
    "aliased": aliased,
    "unused output": unused_output,
    "changed later": changed_later,
}
