"""A basis of a subspace is one of many: gradients that are right for all that does not depend on the choice.

A Function that returns orthonormal columns (the null space of a matrix, leading singular vectors) may leave out how
they turn within the space they span. Differences see that turning; nothing that depends on the space alone does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.examination import Examiner
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.functions import speaks_of_design
from gradproof_probe.gradients.labels import Label
from gradproof_probe.trees import tensors, transform

WORDS: Final = re.compile(r"(sub|null|eigen|column )[ _-]?space|basis|subspace", re.IGNORECASE)
NEAR: Final = 1e-9


def right_for_the_space(
    function: Any, args: list[Any], *, source_root: Path, seed: int, deadline: float
) -> Label | None:
    """A label if outputs are orthonormal columns, the source speaks of a space, and its projector has the gradient."""
    word = speaks_of_design(function, WORDS)
    if word is None:
        return None

    def make(precision: torch.dtype | None) -> Experiment:
        copies = [transform(item, lambda tensor: tensor.detach().clone()) for item in args]
        return Experiment(_projected(function.apply), copies, {}, None, seed=seed, precision=precision)

    examined = Examiner(make, source_root=source_root, seed=seed, deadline=deadline).examine()
    if examined.verdict != "pass":
        return None
    return Label(
        "choice_of_basis",
        "its columns are one basis of a space among many: the gradient is right for the space that they span",
        (f"its source speaks of {word!r}", f"for the projector on its columns {examined.text}"),
    )


def _projected(call: Callable[..., Any]) -> Callable[..., list[torch.Tensor]]:
    """The projectors on those outputs that are orthonormal columns, fewer than their length."""

    def run(*args: Any) -> list[torch.Tensor]:
        return [
            value @ value.mH
            for _, value in tensors(call(*args))
            if value.requires_grad and _orthonormal(value.detach())
        ]

    return run


def _orthonormal(value: torch.Tensor) -> bool:
    if value.dim() < 2 or not 1 <= value.shape[-1] < value.shape[-2]:
        return False
    unit = torch.eye(value.shape[-1], dtype=value.dtype, device=value.device)
    return bool((value.mH @ value - unit).abs().max() <= NEAR)
