"""Ordinary inputs of about a given number of elements, in the regimes that gradient checks are known to stumble over.

The same seed draws the same numbers in every regime: a regime changes values, memory or flags, never the draw. A
Function asks for what it needs (`positive`, `indices`, …); nothing here aims at a fault.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

# checks of correct Functions false-alarm on small values (differences drown), large ones (saturation), ties and kinks
# (grid), and stumble over memory and flags. `subset`: only every second tensor requires grad; `unflagged`: none does.
REGIMES: Final = ("normal", "tiny", "large", "grid", "positive", "strided", "float32", "subset", "unflagged")


class Draw:
    """Tensors of one call. `batch`: the length of the leading axis, where the Function has one of its own."""

    def __init__(self, elements: int, regime: str = "normal", seed: int = 0, batch: int | None = None) -> None:
        if regime not in REGIMES:
            raise ValueError(f"{regime!r} is not one of {', '.join(REGIMES)}")
        self.elements = elements
        self.regime = regime
        self._batch = batch
        self._generator = torch.Generator().manual_seed(1000 * seed + 17)
        self._tensors = 0

    def batch(self, usual: int) -> int:
        """The length of the leading axis."""
        return usual if self._batch is None else self._batch

    def side(self, per_square: int = 1) -> int:
        """A length n so that n times n times `per_square` is about the number of elements."""
        return max(2, round(math.sqrt(self.elements / per_square)))

    def matrix(self) -> tuple[int, int]:
        """Rows and columns, never equal."""
        side = self.side()
        return self.batch(side), max(3, self.elements // side if self._batch is None else side + 1)

    def tensor(self, *shape: int) -> Tensor:
        """Of either sign."""
        return self._finish(self._valued(self._normal(shape)))

    def positive(self, *shape: int) -> Tensor:
        """At least a tenth of its scale away from zero."""
        return self._finish(self._valued(self._normal(shape)).abs() + (1e-6 if self.regime == "tiny" else 0.1))

    def probabilities(self, *shape: int) -> Tensor:
        """Rows of the last axis sum to one, none is near zero."""
        value = self._normal(shape).abs() + 0.2
        return self._finish(value / value.sum(-1, keepdim=True))

    def well_conditioned(self, *shape: int) -> Tensor:
        """Square matrices whose diagonal dominates."""
        value = self._valued(self._normal(shape))
        length = shape[-1]
        scale = value.abs().sum(-1).amax(-1)[..., None, None] + (1e-6 if self.regime == "tiny" else 0.1)
        return self._finish(value + 2 * scale * torch.eye(length, dtype=value.dtype))

    def complex(self, *shape: int) -> Tensor:
        """Complex numbers."""
        real, imaginary = self._valued(self._normal(shape)), self._valued(self._normal(shape))
        return self._finish(torch.complex(real, imaginary))

    def indices(self, high: int, *shape: int) -> Tensor:
        """Integers below `high`, with repetitions."""
        return torch.randint(0, high, shape, generator=self._generator)

    def mask(self, *shape: int) -> Tensor:
        """Three quarters true."""
        return torch.rand(shape, generator=self._generator) < 0.75

    def data(self, *shape: int) -> Tensor:
        """Floating numbers that nobody differentiates: targets, weights of samples."""
        value = self._valued(self._normal(shape))
        return value.float() if self.regime == "float32" else value

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self._generator)

    def _valued(self, value: Tensor) -> Tensor:
        changed = {
            "tiny": lambda: value * 1e-5,
            "large": lambda: value * 30,
            "grid": lambda: (value * 2).round() / 2,
            "positive": lambda: value.abs() + 0.1,
        }.get(self.regime)
        return value if changed is None else changed()

    def _finish(self, value: Tensor) -> Tensor:
        if self.regime == "float32":
            value = value.to(torch.complex64 if value.is_complex() else torch.float32)
        elif self.regime == "strided":
            value = strided(value)
        self._tensors += 1
        flagged = self.regime != "unflagged" and not (self.regime == "subset" and self._tensors % 2 == 0)
        return value.detach().requires_grad_(flagged)


def strided(value: Tensor) -> Tensor:
    """The same values in other memory: transposed where there are two axes, else every second element of a buffer."""
    if value.ndim >= 2:
        return value.mT.contiguous().mT
    return torch.stack([value, value + 1], -1)[..., 0]


Inputs = tuple[Any, ...]
