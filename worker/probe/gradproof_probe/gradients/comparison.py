"""One variable at single coordinates: what autograd returned there, and what differences say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gradproof_probe.gradients.naming.pairs import GradientPair


@dataclass(slots=True)
class Comparison:
    """One variable: flat coordinates that were compared, with both values, and the errors of the numeric ones."""

    name: str
    shape: tuple[int, ...]
    indices: list[int]
    analytic: list[float]
    numeric: list[float]
    error: list[float]
    kind: Literal["input", "parameter"] = "input"
    ordinal: int = 0

    def bad(self) -> list[int]:
        """Positions in the lists where the values differ beyond the error."""
        scale = self.scale
        return [
            position
            for position, (a, n, e) in enumerate(zip(self.analytic, self.numeric, self.error, strict=True))
            if abs(a - n) > 10 * e + 1e-6 * max(abs(a), abs(n)) + 1e-9 * scale
        ]

    @property
    def scale(self) -> float:
        return max((abs(value) for value in [*self.analytic, *self.numeric]), default=0.0)

    def worst(self) -> dict[str, Any]:
        position = max(
            range(len(self.indices)), key=lambda i: abs(self.analytic[i] - self.numeric[i]) if self.indices else 0.0
        )
        return {
            "variable": self.name,
            "kind": self.kind,
            "ordinal": self.ordinal,
            "index": unravel(self.indices[position], self.shape),
            "analytic": self.analytic[position],
            "numeric": self.numeric[position],
            "error_estimate": self.error[position],
        }

    def pair(self, value: torch.Tensor, gradient: torch.Tensor) -> GradientPair:
        """For naming: the whole gradient, and a reference that is unknown (NaN) where nothing was compared."""
        reference = torch.full((gradient.numel(),), float("nan"), dtype=torch.float64)
        reference[self.indices] = torch.tensor(self.numeric, dtype=torch.float64)
        return GradientPair(
            name=self.name,
            kind=self.kind,
            ordinal=self.ordinal,
            value=value.to(torch.float64),
            analytic=gradient.to(torch.float64),
            reference=reference.reshape(gradient.shape),
            error=max(self.error, default=0.0),
        )


def unravel(index: int, shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(shape):
        found.append(index % size)
        index //= size
    return found[::-1]
