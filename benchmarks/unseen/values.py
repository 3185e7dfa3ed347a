"""Inputs for the cases: small tensors drawn from seeds, so that a case is the same in every run.

Nothing here may draw from torch's global generator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """The seed depends on the number of dimensions, so that a matrix isn't a slice of a batch."""
    return torch.randn(*shape, generator=_generator(1000 + seed + 7 * len(shape)), dtype=torch.float64)


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Between 0.3 and 1.3."""
    return 0.3 + torch.rand(*shape, generator=_generator(seed), dtype=torch.float64)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=_generator(seed))


def distinct(high: int, count: int, seed: int = 0) -> Tensor:
    """So many different integers below `high`."""
    return torch.randperm(high, generator=_generator(seed))[:count]


def complex_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.complex(normal(*shape, seed=seed), normal(*shape, seed=seed + 50))


def rotary(length: int, half: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for rotary position embeddings."""
    angle = torch.arange(length, dtype=torch.float64).unsqueeze(-1) * torch.logspace(0, -1, half, dtype=torch.float64)
    return angle.cos(), angle.sin()


def with_zeros(*shape: int, every: int = 3, seed: int = 0) -> Tensor:
    drawn = normal(*shape, seed=seed)
    drawn.view(-1)[::every] = 0
    return drawn


def with_minus_infinity(*shape: int, seed: int = 0) -> Tensor:
    drawn = normal(*shape, seed=seed)
    drawn[..., 0, 1] = drawn[..., 0, 3] = drawn[..., 2, 2] = float("-inf")
    return drawn


def causal_mask(queries: int, keys: int) -> Tensor:
    """Minus infinity where a query may not see a key; the last query sees all of them."""
    return torch.full((queries, keys), float("-inf"), dtype=torch.float64).triu(1 + keys - queries)


def tied(*shape: int, seed: int = 0) -> Tensor:
    """Rounded, so that many values are equal."""
    return (normal(*shape, seed=seed) * 1.5).round()


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Whole numbers in floating point; adding 0.0 turns -0.0 into 0.0."""
    return (normal(*shape, seed=seed) * 3).round() + 0.0


def large(*shape: int, by: float = 30.0, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed) * by


def single(*values: Any) -> tuple[Any, ...]:
    """The same arguments with float32 for float64."""
    return tuple(v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)
