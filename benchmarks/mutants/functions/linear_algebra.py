"""Products, inverses and forms of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

TRANSPOSED = ("transposed",)
AVERAGED = ("mean_instead_of_sum", "scaled_gradient", "wrong_reduction")


def two_matrices(draw: Draw) -> Inputs:
    side = draw.side()
    return draw.tensor(draw.batch(side), side), draw.tensor(side, side)


def invertible(draw: Draw) -> Inputs:
    side = draw.side()
    return (draw.well_conditioned(side, side),)


@right(
    two_matrices,
    Slip("forgets to transpose a", "a.mT @ grad_output", "a @ grad_output"),
    Slip("has the product's order wrong", "a.mT @ grad_output", "grad_output.mT @ a", TRANSPOSED),
)
class MatrixProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad_output @ b.mT, a.mT @ grad_output


@right(
    lambda draw: (
        draw.tensor(draw.batch(3), 4, max(2, draw.elements // 27)),
        draw.tensor(draw.batch(3), max(2, draw.elements // 27), 5),
    ),
    Slip(
        "takes one batch element's b for all",
        "grad_output @ b.mT",
        "grad_output @ b[:1].mT",
        ("wrong_tail", "wrong_coordinates"),
    ),
    Slip("sums over the batch", "a.mT @ grad_output", "(a.mT @ grad_output).sum(0, keepdim=True).expand(b.shape)"),
)
class BatchedMatrixProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad_output @ b.mT, a.mT @ grad_output


@right(
    lambda draw: (
        draw.tensor(draw.batch(draw.side()), draw.side()),
        draw.tensor(draw.side(), draw.side()),
        draw.tensor(draw.side()),
    ),
    Slip("returns the weight's gradient transposed", "grad_output.mT @ x", "x.mT @ grad_output", TRANSPOSED),
    Slip("averages the bias's gradient", "grad_output.sum(0)", "grad_output.mean(0)", AVERAGED),
    Slip("multiplies by the transposed weight", "grad_output @ weight,", "grad_output @ weight.mT,"),
)
class LinearLayer(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.mT @ x, grad_output.sum(0)


def bilinear_inputs(draw: Draw) -> Inputs:
    side = max(2, round(draw.elements ** (1 / 3)))
    return draw.tensor(draw.batch(side), side), draw.tensor(draw.batch(side), side), draw.tensor(side, side, side)


@right(
    bilinear_inputs,
    Slip(
        "uses the left input for the right",
        '"bk,kij,bi->bj", grad_output, weight, left',
        '"bk,kij,bi->bj", grad_output, weight, right',
    ),
    Slip("has the weight's axes exchanged", '"bk,bi,bj->kij"', '"bk,bi,bj->kji"', TRANSPOSED),
)
class Bilinear(Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, weight)
        return torch.einsum("bi,kij,bj->bk", left, weight, right)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right, weight = ctx.saved_tensors
        grad_left = torch.einsum("bk,kij,bj->bi", grad_output, weight, right)
        grad_right = torch.einsum("bk,kij,bi->bj", grad_output, weight, left)
        return grad_left, grad_right, torch.einsum("bk,bi,bj->kij", grad_output, left, right)


@right(
    lambda draw: (draw.tensor(draw.side()), draw.tensor(draw.side() + 1)),
    Slip("forgets the other vector", "grad_output @ b", "grad_output.sum(1)"),
    Slip("averages", "grad_output.mT @ a", "grad_output.mT @ a / len(a)", AVERAGED),
)
class OuterProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a[:, None] * b[None, :]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad_output @ b, grad_output.mT @ a


@right(
    lambda draw: (draw.tensor(draw.side(), draw.side()), draw.tensor(draw.side(), draw.side())),
    Slip(
        "forgets to transpose", "grad_output * b.mT, grad_output * a.mT", "grad_output * b, grad_output * a", TRANSPOSED
    ),
    Slip(
        "exchanges the gradients",
        "grad_output * b.mT, grad_output * a.mT",
        "grad_output * a.mT, grad_output * b.mT",
        ("swapped_gradients",),
    ),
)
class TraceOfProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return (a * b.mT).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad_output * b.mT, grad_output * a.mT


@right(
    invertible,
    Slip("forgets the sign", "-(y.mT @", "(y.mT @", ("wrong_sign",)),
    Slip("forgets to transpose", "-(y.mT @ grad_output @ y.mT)", "-(y @ grad_output @ y)"),
)
class Inverse(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        y = torch.linalg.inv(a)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return -(y.mT @ grad_output @ y.mT)


@right(
    lambda draw: (*invertible(draw), draw.tensor(draw.side(), 2)),
    Slip(
        "solves with the untransposed matrix",
        "torch.linalg.solve(a.mT, grad_output)",
        "torch.linalg.solve(a, grad_output)",
    ),
    Slip("forgets the sign", "-grad_b @ x.mT", "grad_b @ x.mT", ("wrong_sign",)),
)
class Solve(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        grad_b = torch.linalg.solve(a.mT, grad_output)
        return -grad_b @ x.mT, grad_b


@right(
    invertible,
    Slip("forgets to transpose", "torch.linalg.inv(a).mT", "torch.linalg.inv(a)", TRANSPOSED),
)
class LogDeterminant(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a)[1]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return grad_output * torch.linalg.inv(a).mT


@right(
    lambda draw: (draw.tensor(draw.batch(draw.side()), draw.side()), draw.tensor(draw.side(), draw.side())),
    Slip("takes the matrix for symmetric", "x @ (a + a.mT)", "2 * x @ a"),
    Slip("forgets half of the product rule", "x @ (a + a.mT)", "x @ a.mT", ("missing_term",)),
)
class QuadraticForm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(x, a)
        return torch.einsum("bi,ij,bj->b", x, a, x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, a = ctx.saved_tensors
        grad_x = grad_output[:, None] * (x @ (a + a.mT))
        return grad_x, torch.einsum("b,bi,bj->ij", grad_output, x, x)


@right(
    lambda draw: (draw.tensor(draw.batch(draw.side(2)), draw.side(2)), draw.tensor(draw.side(2) + 1, draw.side(2))),
    Slip(
        "forgets the factor 2",
        "2 * (grad_output.sum(1, keepdim=True) * a - grad_output @ b)",
        "grad_output.sum(1, keepdim=True) * a - grad_output @ b",
        ("scaled_gradient",),
    ),
    Slip(
        "forgets the cross term",
        "2 * (grad_output.sum(1, keepdim=True) * a - grad_output @ b)",
        "2 * grad_output.sum(1, keepdim=True) * a",
        ("missing_term",),
    ),
)
class SquaredDistances(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return (a[:, None] - b[None]).pow(2).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        grad_a = 2 * (grad_output.sum(1, keepdim=True) * a - grad_output @ b)
        return grad_a, 2 * (grad_output.sum(0)[:, None] * b - grad_output.mT @ a)
