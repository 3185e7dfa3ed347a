"""A custom Function under torch.func inside compiled code: torch 2.13 drops its backward there (pytorch issue 193279),
and its rule for vmap.

Dynamo alone is asked. Who never uses torch.func, or never compiles, is told in the evidence; the check fails only where
the repository does both. What the Function gives under vmap uncompiled is compared with a loop elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.custom_functions import has_setup_context
from gradproof_probe.compiling.repository import compiles, uses_transforms
from gradproof_probe.compiling.running import backend_named
from gradproof_probe.equivalence.observation import ROUNDING, relative_error
from gradproof_probe.harness.recipe import build
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors

# A backward that is written by hand to round better than the derivative of forward does is no other gradient.
_BETTER_ROUNDED: Final = 1e-3
_SAMPLES: Final = (1.0, 0.7, 1.3)  # what one sample is multiplied by, to make a batch

Tensors = tuple[torch.Tensor, ...]
Transformed = Callable[..., Tensors]


def under_transforms(context: CheckContext) -> dict[str, Answer]:
    """By the transform, whether it gives the same of the Function compiled; without those that torch.func refuses."""
    function: Any = context.resolved.value
    if context.resolved.target.kind != "autograd_function" or not has_setup_context(function):
        return {}
    made = {"torch.func.vjp": _pulled(context, function)}
    if function.vmap is not torch.autograd.Function.vmap or function.generate_vmap_rule:
        made["torch.func.vmap"] = _batched(context, function)
    found = {name: _compared(context, name, *item) for name, item in made.items() if item is not None}
    return {name: answer for name, answer in found.items() if answer is not None}


def _pulled(context: CheckContext, function: Any) -> tuple[Transformed, Tensors] | None:
    """The gradient of the first output, for a random incoming one."""
    try:
        call, given = _of_floating(context, function)
        reseed(context.seed)
        cotangent = torch.randn_like(call(*given))
    except Exception:
        return None

    def gradient(*values: torch.Tensor) -> Tensors:
        _, pull = torch.func.vjp(call, *values)
        return tuple(pull(cotangent))

    return gradient, given


def _batched(context: CheckContext, function: Any) -> tuple[Transformed, Tensors] | None:
    """Outputs and gradients of a batch of samples."""
    try:
        call, given = _of_floating(context, function)
        stacked = tuple(torch.stack([value * factor for factor in _SAMPLES]) for value in given)
        reseed(context.seed)
        cotangent = torch.randn_like(torch.func.vmap(call)(*stacked))
    except Exception:
        return None

    def together(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(call)(*values)

    def both(run: Callable[..., torch.Tensor], *values: torch.Tensor) -> Tensors:
        leaves = [value.clone().requires_grad_() for value in values]
        output = run(*leaves)
        gradients = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
        kept = [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, gradients, strict=True)]
        return (output.detach(), *kept)

    return _Outside(together, both), stacked


class _Outside:
    """A function that is compiled by itself, and differentiated outside of what is compiled."""

    def __init__(self, inside: Callable[..., torch.Tensor], around: Callable[..., Tensors]) -> None:
        self.inside = inside
        self.around = around

    def __call__(self, *values: torch.Tensor) -> Tensors:
        return self.around(self.inside, *values)

    def compiled(self) -> Transformed:
        run = torch.compile(self.inside, backend=backend_named("eager"))
        return lambda *values: self.around(run, *values)


def _of_floating(context: CheckContext, function: Any) -> tuple[Callable[..., torch.Tensor], Tensors]:
    """The first output as a function of the floating-point inputs, and these."""
    built = build(context.resolved, context.recipe, seed=context.seed)
    moved = [i for i, value in enumerate(built.args) if isinstance(value, torch.Tensor) and value.is_floating_point()]

    def call(*values: torch.Tensor) -> torch.Tensor:
        args = list(built.args)
        for i, value in zip(moved, values, strict=True):
            args[i] = value
        return tensors(function.apply(*args))[0][1]

    return call, tuple(built.args[i].detach() for i in moved)


def _compared(context: CheckContext, name: str, transformed: Transformed, given: Tensors) -> Answer | None:
    """None where the transform refuses the Function uncompiled."""
    try:
        reseed(context.seed)
        expected = transformed(*given)
    except Exception:
        return None
    torch._dynamo.reset()
    try:
        reseed(context.seed)
        compiled = (
            transformed.compiled()
            if isinstance(transformed, _Outside)
            else torch.compile(transformed, backend=backend_named("eager"))
        )
        got = compiled(*given)
    except Exception as error:
        return Answer("skipped", "", f"not compiled: {describe_error(error, 150)}")
    largest = max(float(value.norm()) for value in expected)
    errors = [relative_error(b, a, largest) for a, b in zip(expected, got, strict=True)]
    worst = max(errors)
    if worst <= ROUNDING:
        return Answer("pass", "equal", f"the same under {name}, compiled")
    function = context.resolved.value.__name__
    cause = "custom_backward_dropped"
    text = (
        f"compiled, {name} of {function} is off by {worst:.1e}: torch.compile differentiates its forward there and "
        "drops its backward"
    )
    if name == "torch.func.vjp":
        text += "; torch.autograd.grad keeps it"
    elif errors[0] > ROUNDING:
        cause = "custom_vmap_dropped"
        text = (
            f"compiled, {name} of {function} gives other values ({errors[0]:.1e}): torch.compile maps its forward "
            "there and drops its own rule for vmap"
        )
    if worst <= _BETTER_ROUNDED:
        return Answer("pass", "equal", text)
    if not (uses_transforms(context.source_root) and compiles(context.source_root)):
        return Answer("pass", "equal", f"{text}. This repository doesn't use both torch.func and torch.compile")
    return Answer("fail", cause, text, numbers={"function": function, "relative": worst})
