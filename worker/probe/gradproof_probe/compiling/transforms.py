"""A custom Function under torch.func inside compiled code: torch 2.13 drops its backward there (pytorch issue 193279).

Dynamo alone is asked. Who never uses torch.func, or never compiles, is told in the evidence; the check fails only where
the repository does both.
"""

from __future__ import annotations

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


def under_vjp(context: CheckContext) -> Answer | None:
    """Whether `torch.func.vjp` of the Function gives the same compiled; None if torch.func does not take it."""
    function: Any = context.resolved.value
    if context.resolved.target.kind != "autograd_function" or not has_setup_context(function):
        return None
    try:
        built = build(context.resolved, context.recipe, seed=context.seed)
        moved = [
            i for i, value in enumerate(built.args) if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        given = [built.args[i].detach() for i in moved]

        def call(*values: torch.Tensor) -> torch.Tensor:
            args = list(built.args)
            for i, value in zip(moved, values, strict=True):
                args[i] = value
            return tensors(function.apply(*args))[0][1]

        reseed(context.seed)
        cotangent = torch.randn_like(call(*given))

        def gradient(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            _, pull = torch.func.vjp(call, *values)
            return tuple(pull(cotangent))

        reseed(context.seed)
        expected = gradient(*given)
    except Exception:
        return None
    torch._dynamo.reset()
    try:
        reseed(context.seed)
        got = torch.compile(gradient, backend=backend_named("eager"))(*given)
    except Exception as error:
        return Answer("skipped", "", f"not compiled: {describe_error(error, 150)}")
    largest = max(float(value.norm()) for value in expected)
    worst = max(relative_error(b, a, largest) for a, b in zip(expected, got, strict=True))
    if worst <= ROUNDING:
        return Answer("pass", "equal", "the same under torch.func.vjp, compiled")
    text = (
        f"compiled, torch.func.vjp of {function.__name__} is off by {worst:.1e}: torch.compile differentiates its "
        "forward there and drops its backward; torch.autograd.grad keeps it"
    )
    if worst <= _BETTER_ROUNDED:
        return Answer("pass", "equal", text)
    if not (uses_transforms(context.source_root) and compiles(context.source_root)):
        return Answer("pass", "equal", f"{text}. This repository doesn't use both torch.func and torch.compile")
    return Answer("fail", "custom_backward_dropped", text, numbers={"function": function.__name__, "relative": worst})
