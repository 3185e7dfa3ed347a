"""Softmax and what is built on it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

MISSING = ("missing_term",)
REDUCED = ("missing_term", "extra_term", "wrong_reduction")


def three_sequences(draw: Draw) -> Inputs:
    length = max(3, round((draw.elements / 6) ** 0.5) + 1)
    width = max(2, draw.elements // (6 * length))
    batch = draw.batch(2)
    return tuple(draw.tensor(batch, length, width) for _ in range(3))


@right(
    lambda draw: (draw.tensor(*draw.matrix()),),
    Slip("forgets the sum", "y * (grad_output - (grad_output * y).sum(-1, keepdim=True))", "y * grad_output", MISSING),
    Slip(
        "treats it as element-wise",
        "y * (grad_output - (grad_output * y).sum(-1, keepdim=True))",
        "y * (1 - y) * grad_output",
    ),
    Slip("averages instead of summing", ".sum(-1, keepdim=True)", ".mean(-1, keepdim=True)", REDUCED),
)
class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True))


@right(
    lambda draw: (draw.tensor(*draw.matrix()),),
    Slip("forgets the sum", " - y.exp() * grad_output.sum(-1, keepdim=True)", "", MISSING),
    Slip("forgets the exponential", "y.exp() * grad_output", "y * grad_output"),
)
class LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.log_softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad_output - y.exp() * grad_output.sum(-1, keepdim=True)


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.mask(*draw.matrix()) | (torch.arange(draw.matrix()[1]) == 0), 2.0),
    Slip("forgets the temperature", " / ctx.temperature", "", ("scaled_gradient",)),
    Slip("forgets the sum", " - (grad_output * y).sum(-1, keepdim=True)", "", MISSING),
)
class MaskedSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, temperature: float) -> Tensor:
        y = (x / temperature).masked_fill(~mask, -torch.inf).softmax(-1)
        ctx.save_for_backward(y)
        ctx.temperature = temperature
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True)) / ctx.temperature, None, None


@right(
    three_sequences,
    Slip("forgets the scale", "grad_scores = scale * ", "grad_scores = ", ("scaled_gradient",)),
    Slip("forgets the softmax's sum", " - (grad_weights * weights).sum(-1, keepdim=True)", "", MISSING),
    Slip("forgets to transpose the weights", "weights.mT @ grad_output", "weights @ grad_output"),
    Slip("has queries for keys", "grad_scores.mT @ query", "grad_scores.mT @ key"),
)
class Attention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1) @ value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        scale = 1 / math.sqrt(query.shape[-1])
        weights = torch.softmax(scale * (query @ key.mT), -1)
        grad_weights = grad_output @ value.mT
        grad_scores = scale * weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
        return grad_scores @ key, grad_scores.mT @ query, weights.mT @ grad_output


@right(
    three_sequences,
    Slip("forgets the mask in backward", ".masked_fill(later, -torch.inf)\n        weights", "\n        weights"),
    Slip("forgets the softmax's sum", " - (grad_weights * weights).sum(-1, keepdim=True)", "", MISSING),
)
class CausalAttention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        return torch.softmax((query @ key.mT).masked_fill(later, -torch.inf), -1) @ value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        scores = (query @ key.mT).masked_fill(later, -torch.inf)
        weights = torch.softmax(scores, -1)
        grad_weights = grad_output @ value.mT
        grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
        return grad_scores @ key, grad_scores.mT @ query, weights.mT @ grad_output


@right(
    three_sequences,
    Slip("takes the state for the values", "grad_output @ state.mT", "grad_output @ state"),
    Slip("has keys for queries", "query.mT @ grad_output", "key.mT @ grad_output"),
)
class LinearAttention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return query @ (key.mT @ value)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        state = key.mT @ value
        grad_state = query.mT @ grad_output
        return grad_output @ state.mT, value @ grad_state.mT, key @ grad_state


@right(
    lambda draw: (draw.tensor(draw.batch(3), max(2, draw.elements // 12), 4), 100.0),
    Slip(
        "forgets to turn back",
        "first * cos + second * sin, second * cos - first * sin",
        "first * cos - second * sin, second * cos + first * sin",
    ),
)
class RotaryEmbedding(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, base: float) -> Tensor:
        half = x.shape[-1] // 2
        position = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
        angle = position * base ** (-torch.arange(half, dtype=x.dtype) / half)
        cos, sin = angle.cos(), angle.sin()
        ctx.save_for_backward(cos, sin)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos + -second * sin, second * cos + first * sin], -1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        cos, sin = ctx.saved_tensors
        half = grad_output.shape[-1] // 2
        first, second = grad_output[..., :half], grad_output[..., half:]
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1), None
