"""Modules that keep tensors from one call to the next: the same calls with a larger input in between, Dynamo alone.

What is kept for one shape and used for another shows in the values of the third call. A module that keeps nothing is
not compiled once more: its calls can't know of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.equivalence.observation import Wrap
from gradproof_probe.harness.recipe import build
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors, transform

CALLS: Final = 3
_DIMENSIONS: Final = (1, 2, 3, 0)  # lengths and sizes before the batch, for which nobody keeps anything


def kept_and_larger(context: CheckContext) -> tuple[str, Wrap] | None:
    """The name of what a call keeps, and what makes the second call's input larger; None if there is no such thing."""
    try:
        built = build(context.resolved, context.recipe, seed=context.seed)
        if built.instance is None:
            return None
        before = _attributes(built.instance)
        reseed(context.seed)
        with torch.no_grad():
            built.call(*built.args, **built.kwargs)
        name = next((name for name, kept in _attributes(built.instance).items() if before.get(name) != kept), None)
        if name is None:
            return None
        for dimension in _DIMENSIONS:
            larger = _doubling(built.args, dimension)
            if larger is not None and _is_taken(context, larger):
                return name, second_call_with(larger)
    except Exception:
        return None  # a target that can't be looked at so is compared with one shape
    return None


def second_call_with(change: Callable[[torch.Tensor], torch.Tensor]) -> Wrap:
    """Wraps a call so that the second of every three is given something else."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        done = 0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done % CALLS == 2:
                return call(*transform(list(args), change), **transform(kwargs, change))
            return call(*args, **kwargs)

        return run

    return wrap


def _attributes(module: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    """What every part keeps beside parameters and buffers, in so far as there are tensors in it."""
    return {
        f"{path}.{name}".lstrip("."): tuple((id(tensor), tuple(tensor.shape)) for _, tensor in found)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if not name.startswith(("_parameters", "_buffers", "_modules")) and (found := tensors(value))
    }


def _doubling(args: list[Any], dimension: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Every tensor that is as long as the first one along a dimension, twice as long."""
    first = next((tensor for _, tensor in tensors(args) if tensor.ndim > dimension), None)
    if first is None or first.shape[dimension] < 2:
        return None
    size = first.shape[dimension]

    def larger(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim <= dimension or tensor.shape[dimension] != size:
            return tensor
        return torch.cat([tensor, tensor], dim=dimension)

    return larger


def _is_taken(context: CheckContext, change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    built = build(context.resolved, context.recipe, seed=context.seed)
    try:
        with torch.no_grad():
            built.call(*transform(built.args, change), **transform(built.kwargs, change))
    except Exception:
        return False
    return True
