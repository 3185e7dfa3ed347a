"""What the naming of a cause starts from and ends in: both gradients of every input, and a name with its numbers.

Data only. It must not compare or call anything: who makes the pairs decides what the reference is, the rules of this
package decide what a difference means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gradproof_probe.gradients.situations import ORDINARY, Situation

# The reference gradients of all differentiable inputs, in the order of `Evidence.pairs`, for other cotangents.
PullBack = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class GradientPair:
    """Both gradients of one differentiable input or parameter, dense, in float64 or complex128.

    `reference` is NaN where it isn't known, when only some coordinates were differentiated. `error` is its absolute
    error: 1e-14 or so for autograd through the forward, the estimate for finite differences.
    """

    name: str
    kind: Literal["input", "parameter"]
    ordinal: int  # its number among the differentiable inputs
    value: torch.Tensor
    analytic: torch.Tensor  # what backward returned
    reference: torch.Tensor  # the derivative
    error: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One call in which a gradient is wrong. The pairs that are right belong to it too: they show swaps."""

    pairs: tuple[GradientPair, ...]
    cotangents: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    situation: Situation = ORDINARY  # the smallest in which it fails
    # Where the reference is cheap, more can be told: what it would be for a cotangent of ones, or without output 1.
    pull_back: PullBack | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """`cause`: a stable word. `text`: one sentence with the numbers. `hint`: what to look for in backward."""

    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
