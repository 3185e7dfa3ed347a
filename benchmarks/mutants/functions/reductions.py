"""Many numbers to one, along an axis."""

# ruff: noqa: ARG004 -- torch sets the signatures of forward and backward
from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

AVERAGED = ("mean_instead_of_sum", "scaled_gradient", "wrong_reduction")


def along_last(draw: Draw) -> Inputs:
    return draw.tensor(*draw.matrix()), -1


def positive_along_last(draw: Draw) -> Inputs:
    return draw.positive(*draw.matrix()), -1


@right(
    along_last,
    Slip("divides by the number", "expand(ctx.shape)", "expand(ctx.shape) / ctx.shape[ctx.dim]", AVERAGED),
)
class SumAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.shape, ctx.dim = x.shape, dim
        return x.sum(dim)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.unsqueeze(ctx.dim).expand(ctx.shape), None


@right(
    along_last,
    Slip("forgets the division", " / ctx.shape[ctx.dim]", "", ("scaled_gradient",)),
    Slip("divides by the other axis", "ctx.shape[ctx.dim]", "ctx.shape[0]", ("scaled_gradient",)),
)
class MeanAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.shape, ctx.dim = x.shape, dim
        return x.mean(dim)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.unsqueeze(ctx.dim).expand(ctx.shape) / ctx.shape[ctx.dim], None


@right(
    along_last,
    Slip(
        "forgets to subtract the result",
        "(x - y.unsqueeze(ctx.dim)).exp()",
        "x.exp()",
        ("extra_factor", "missing_factor", "wrong_factor"),
    ),
    Slip("gives the mean's gradient", "(x - y.unsqueeze(ctx.dim)).exp()", "torch.ones_like(x) / x.shape[ctx.dim]"),
)
class LogSumExp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = x.logsumexp(dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return grad_output.unsqueeze(ctx.dim) * (x - y.unsqueeze(ctx.dim)).exp(), None


@right(
    along_last,
    Slip(
        "spreads it over the axis",
        "zeros.scatter(ctx.dim, index.unsqueeze(ctx.dim), grad)",
        "zeros + grad / zeros.shape[ctx.dim]",
    ),
)
class LargestAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        values, index = x.max(dim)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape, ctx.dim = x.shape, dim
        return values, index

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, grad_index: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        zeros = grad_values.new_zeros(ctx.shape)
        grad = grad_values.unsqueeze(ctx.dim)
        return zeros.scatter(ctx.dim, index.unsqueeze(ctx.dim), grad), None


@right(
    along_last,
    Slip("divides by n, not n - 1", "(x.shape[ctx.dim] - 1)", "x.shape[ctx.dim]", ("scaled_gradient",)),
    Slip("forgets to centre", "2 * (x - x.mean(ctx.dim, keepdim=True))", "2 * x", ("missing_term",)),
)
class VarianceAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim = dim
        return x.var(dim)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        slope = 2 * (x - x.mean(ctx.dim, keepdim=True)) / (x.shape[ctx.dim] - 1)
        return grad_output.unsqueeze(ctx.dim) * slope, None


@right(
    along_last,
    Slip("forgets to divide by the deviation", " / y.unsqueeze(ctx.dim)", "", ("missing_factor", "extra_factor")),
    without=["grid"],
)
class DeviationAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = x.std(dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        slope = (x - x.mean(ctx.dim, keepdim=True)) / (x.shape[ctx.dim] - 1) / y.unsqueeze(ctx.dim)
        return grad_output.unsqueeze(ctx.dim) * slope, None


@right(
    lambda draw: (draw.positive(max(2, draw.elements // 5), 5), -1),
    Slip("forgets to take its own factor out", " / x", " + 0 * x", ("missing_factor", "extra_factor")),
)
class ProductAlong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim = dim
        return x.prod(dim)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        others = x.prod(ctx.dim, keepdim=True) / x
        return grad_output.unsqueeze(ctx.dim) * others, None


@right(
    along_last,
    Slip(
        "sums in the forward's direction",
        "grad_output.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)",
        "grad_output.cumsum(ctx.dim)",
    ),
    Slip("forgets to turn it back", "cumsum(ctx.dim).flip(ctx.dim)", "cumsum(ctx.dim)", ("flipped",)),
)
class CumulativeSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


@right(
    positive_along_last,
    Slip("forgets to divide by the length", " / y.unsqueeze(ctx.dim)", "", ("missing_factor", "extra_factor")),
)
class EuclideanLength(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = x.pow(2).sum(dim).sqrt()
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return grad_output.unsqueeze(ctx.dim) * x / y.unsqueeze(ctx.dim), None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.positive(draw.matrix()[1])),
    Slip("forgets that the weights are normalised", "(x - y.unsqueeze(-1))", "x", ("missing_term",)),
    Slip("forgets to divide by the total", "weight / total", "weight", ("scaled_gradient",)),
)
class WeightedMean(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y = (x * weight).sum(-1) / weight.sum()
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        total = weight.sum()
        grad_weight = (grad_output.unsqueeze(-1) * (x - y.unsqueeze(-1))).sum(0) / total
        return grad_output.unsqueeze(-1) * (weight / total), grad_weight
