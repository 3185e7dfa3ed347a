"""Normalisation layers: every element of a group has a share in its mean and its scale, and so in every gradient."""

# ruff: noqa: ARG004 -- torch sets the signatures of forward and backward
from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

MISSING = ("missing_term",)
REDUCED = ("missing_term", "extra_term", "wrong_reduction")
AVERAGED = ("mean_instead_of_sum", "scaled_gradient", "wrong_reduction")


def rows_and_affine(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.tensor(columns), draw.tensor(columns), 1e-5


def rows_and_weight(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.tensor(columns), 1e-6


def channels(draw: Draw) -> Inputs:
    side = max(2, round((draw.elements / 8) ** 0.5))
    return draw.tensor(draw.batch(2), 4, side, side), 2, 1e-5


@right(
    rows_and_affine,
    Slip("forgets the mean's term", " - inner.mean(-1, keepdim=True)", "", MISSING),
    Slip("forgets the variance's term", " - normal * (inner * normal).mean(-1, keepdim=True)", "", MISSING),
    Slip("forgets the weight", "inner = grad_output * weight", "inner = grad_output"),
    Slip("averages the weight's gradient", "(grad_output * normal).sum(0)", "(grad_output * normal).mean(0)", AVERAGED),
)
class LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normal = centred * scale
        inner = grad_output * weight
        projected = inner - inner.mean(-1, keepdim=True) - normal * (inner * normal).mean(-1, keepdim=True)
        return scale * projected, (grad_output * normal).sum(0), grad_output.sum(0), None


@right(
    rows_and_weight,
    Slip("takes the scale for a constant", " - normal * (inner * normal).mean(-1, keepdim=True)", "", MISSING),
    Slip(
        "sums where it should average",
        "(inner * normal).mean(-1, keepdim=True)",
        "(inner * normal).sum(-1, keepdim=True)",
        REDUCED,
    ),
)
class RootMeanSquareNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        scale = (x.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normal = x * scale
        inner = grad_output * weight
        grad_x = scale * (inner - normal * (inner * normal).mean(-1, keepdim=True))
        return grad_x, (grad_output * normal).sum(0), None


@right(
    channels,
    Slip("forgets the mean's term", " - grad.mean(-1, keepdim=True)", "", MISSING),
    Slip("forgets the variance's term", " - normal * (grad * normal).mean(-1, keepdim=True)", "", MISSING),
)
class GroupNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, eps: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.groups, ctx.eps = groups, eps
        flat = x.reshape(x.shape[0], groups, -1)
        centred = flat - flat.mean(-1, keepdim=True)
        return (centred * (centred.pow(2).mean(-1, keepdim=True) + eps).rsqrt()).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        flat = x.reshape(x.shape[0], ctx.groups, -1)
        grad = grad_output.reshape(flat.shape)
        centred = flat - flat.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normal = centred * scale
        projected = grad - grad.mean(-1, keepdim=True) - normal * (grad * normal).mean(-1, keepdim=True)
        return (scale * projected).reshape(x.shape), None, None


@right(
    rows_and_affine,
    Slip("forgets the variance's term", " - normal * (inner * normal).mean(0)", "", MISSING),
    Slip("takes the mean over the wrong axis", "inner.mean(0)", "inner.mean(-1, keepdim=True)", REDUCED),
)
class BatchNormInTraining(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        centred = x - x.mean(0)
        return centred * (centred.pow(2).mean(0) + eps).rsqrt() * weight + bias

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        centred = x - x.mean(0)
        scale = (centred.pow(2).mean(0) + ctx.eps).rsqrt()
        normal = centred * scale
        inner = grad_output * weight
        grad_x = scale * (inner - inner.mean(0) - normal * (inner * normal).mean(0))
        return grad_x, (grad_output * normal).sum(0), grad_output.sum(0), None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), 1e-12),
    Slip("takes the length for a constant", " - y * (grad_output * y).sum(-1, keepdim=True)", "", MISSING),
    Slip(
        "averages the projection",
        "(grad_output * y).sum(-1, keepdim=True)",
        "(grad_output * y).mean(-1, keepdim=True)",
        REDUCED,
    ),
)
class UnitLength(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        length = (x.pow(2).sum(-1, keepdim=True) + eps).sqrt()
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / length

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        length = (x.pow(2).sum(-1, keepdim=True) + ctx.eps).sqrt()
        y = x / length
        return (grad_output - y * (grad_output * y).sum(-1, keepdim=True)) / length, None


@right(
    lambda draw: (draw.positive(*draw.matrix()), draw.tensor(draw.matrix()[0], 1)),
    Slip("forgets the projection", " - unit * grad_gain", "", MISSING),
    Slip("forgets the gain", "gain / length * (", "1 / length * (", ("missing_factor",)),
)
class WeightNorm(Function):
    @staticmethod
    def forward(ctx: Any, direction: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(direction, gain)
        return gain * direction / direction.pow(2).sum(1, keepdim=True).sqrt()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        direction, gain = ctx.saved_tensors
        length = direction.pow(2).sum(1, keepdim=True).sqrt()
        unit = direction / length
        grad_gain = (grad_output * unit).sum(1, keepdim=True)
        return gain / length * (grad_output - unit * grad_gain), grad_gain


@right(
    lambda draw: (draw.tensor(*draw.matrix()),),
    Slip(
        "passes the gradient through",
        "grad_output - grad_output.mean(-1, keepdim=True)",
        "grad_output.clone()",
        MISSING,
    ),
    Slip("subtracts the sum", "grad_output.mean(-1, keepdim=True)", "grad_output.sum(-1, keepdim=True)", REDUCED),
)
class Centred(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output - grad_output.mean(-1, keepdim=True)
