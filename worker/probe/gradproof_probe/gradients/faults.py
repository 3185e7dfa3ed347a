"""A wrong gradient as it was found: the situation, both gradients, and what differences say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradproof_probe.gradients.judging import Ruled
from gradproof_probe.gradients.situations import Situation
from gradproof_probe.gradients.subject import Pull

Constancy = Literal["all", "some", "none"]


@dataclass(slots=True)
class Fault:
    """A wrong gradient: where, in which (smallest) situation, and both gradients. `reference` may hold NaN: unknown."""

    situation: Situation
    pull: Pull
    reference: list[torch.Tensor | None]
    ruled: Ruled | None
    raised: BaseException | None = None


def locally_constant(fault: Fault, wrong: Sequence[int]) -> Constancy:
    """Whether, wherever they differ, the derivative is zero; `all`: it is zero everywhere."""
    if not wrong or fault.ruled is None or abs(fault.ruled.numeric) > 1e-9 * max(abs(fault.ruled.analytic), 1e-300):
        return "none"
    moving = False
    for index in wrong:
        analytic, reference = fault.pull.gradients[index], fault.reference[index]
        if analytic is None:
            return "none"
        truth = torch.zeros_like(analytic) if reference is None else reference
        known = torch.isfinite(truth)
        scale = float(analytic.abs().max())
        apart = known & ((analytic - truth).abs() > 1e-6 * scale)
        if bool((truth[apart].abs() > 1e-9 * scale).any()):
            return "none"
        moving = moving or bool((truth[known].abs() > 1e-9 * scale).any())
    return "some" if moving else "all"
