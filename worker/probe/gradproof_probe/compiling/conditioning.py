"""Is a difference the rounding that eager execution magnifies as well, when its inputs are off by one unit?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.running import CALLS, observed
from gradproof_probe.equivalence.observation import UNIT, Mode, Observation, relative_error
from gradproof_probe.trees import transform

# Inductor against a float64 reference: healthy ratios 0.63 to 1.95, injected bugs 209 and more.
RATIO: Final = 6.0


def is_ill_conditioned(
    context: CheckContext, mode: Mode, plain: Observation, compiled: Observation, *, calls: int = CALLS
) -> bool:
    """Whether eager changes about as much where its inputs are moved by one unit of float32, up or down."""
    try:
        moved = observed(context, mode, calls=calls, wrap=_with_moved_inputs)
    except Exception:
        return False
    largest = plain.gradient_norm()

    def distance(other: Observation, name: str) -> float:
        if name not in other.values:
            return float("inf")
        value, expected = other.values[name], plain.values[name]
        return relative_error(value, expected, largest if "gradient" in name else 0.0)

    floating = [name for name, value in plain.values.items() if value.is_floating_point()]
    return all(
        distance(compiled, name) <= RATIO * max(distance(moved, name), UNIT)
        for name in floating
        if "input" not in name or "gradient" in name
    )


def _with_moved_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        generator = torch.Generator().manual_seed(0)  # the global one draws what the call draws

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            ways = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
            return tensor * (1 + UNIT * ways)

        return call(*transform(list(args), moved), **transform(kwargs, moved))

    return run
