"""What inductor is held to: errors that rounding does not make, in results that are not nought but for rounding."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.inductor import allowed_ratio, errors_of, worst_of
from gradproof_probe.compiling.running import observed
from gradproof_probe.equivalence.observation import Observation
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target


def seen(small: torch.Tensor, large: torch.Tensor) -> Observation:
    return Observation({"gradient of a bias in front of a norm": small, "gradient weight": large})


LARGE = torch.ones(16, dtype=torch.float64)


def worst(small: float) -> float:
    """Where float64 and eager have next to nothing, and compiled code this much of the largest gradient."""
    nought, other = torch.full((16,), 1e-13, dtype=torch.float64), torch.full((16,), small)
    return worst_of(errors_of(seen(nought.float(), LARGE.float()), seen(other, LARGE.float()), seen(nought, LARGE)))[0]


def test_a_gradient_that_is_nought_but_for_rounding_is_not_compared() -> None:
    assert worst(6 * 2.0**-23) == 0
    assert worst(200 * 2.0**-23) > 1e6


def test_more_is_allowed_where_more_is_summed_and_never_less_than_six_times() -> None:
    def allowed(inputs: str) -> float:
        target = Target("norms:BatchNorm2d", "module", "norms.py", 1, "", "norms", "BatchNorm2d")
        recipe = Recipe("declared", "A", "torch.nn.BatchNorm2d(4)", (inputs,), "test")
        resolved = Resolved(target, sys.modules[__name__], torch.nn.BatchNorm2d)
        context = CheckContext(resolved, recipe, Path(__file__).parent, "cpu", 0, time.monotonic() + 60)
        return allowed_ratio(context, observed(context, "train", calls=1))

    assert allowed("torch.randn(2, 4, 2, 2)") == 6
    assert allowed("torch.randn(4, 4, 16, 16)") == 1.5 * 1024**0.5
