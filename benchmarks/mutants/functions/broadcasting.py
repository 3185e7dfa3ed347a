"""Several inputs of different shapes: what was broadcast in forward has to be summed in backward."""

# ruff: noqa: ARG004 -- torch sets the signatures of forward and backward
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right


def unbroadcast(grad: Tensor, shape: torch.Size) -> Tensor:
    """Sum over the axes that broadcasting made or stretched."""
    added = grad.ndim - len(shape)
    grad = grad.sum(tuple(range(added))) if added else grad
    stretched = tuple(axis for axis, length in enumerate(shape) if length == 1 and grad.shape[axis] != 1)
    return grad.sum(stretched, keepdim=True) if stretched else grad


def with_row(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.tensor(columns)


def with_column(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.positive(rows, 1)


@right(
    with_row,
    Slip(
        "averages over the rows",
        "grad_output.sum(0)",
        "grad_output.mean(0)",
        ("mean_instead_of_sum", "scaled_gradient"),
    ),
)
class AddRow(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, row: Tensor) -> Tensor:
        return x + row

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        return grad_output.clone(), grad_output.sum(0)


@right(
    with_row,
    Slip("forgets x in the row's gradient", "unbroadcast(grad_output * x", "unbroadcast(grad_output"),
    Slip(
        "has the factors exchanged", "unbroadcast(grad_output * row", "unbroadcast(grad_output * x", ("wrong_factor",)
    ),
)
class MultiplyBroadcast(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(x, row)
        return x * row

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, row = ctx.saved_tensors
        return unbroadcast(grad_output * row, x.shape), unbroadcast(grad_output * x, row.shape)


@right(
    with_column,
    Slip("forgets the divisor's sign", "-grad_output * x", "grad_output * x", ("wrong_sign",)),
    Slip("forgets the square", "(column * column)", "column", ("missing_factor", "extra_factor")),
)
class DivideBroadcast(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(x, column)
        return x / column

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, column = ctx.saved_tensors
        grad_column = unbroadcast(-grad_output * x / (column * column), column.shape)
        return unbroadcast(grad_output / column, x.shape), grad_column


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.tensor(*draw.matrix())),
    Slip("gives both to the first", "grad_output * ~first", "grad_output * first"),
)
class LargerOf(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        first = a >= b
        ctx.save_for_backward(first)
        return torch.where(first, a, b)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        (first,) = ctx.saved_tensors
        return grad_output * first, grad_output * ~first


@right(
    lambda draw: (draw.positive(*draw.matrix()), draw.positive(*draw.matrix())),
    Slip(
        "has the legs exchanged",
        "grad_output * a / length, grad_output * b / length",
        "grad_output * b / length, grad_output * a / length",
        ("swapped_gradients",),
    ),
    Slip("forgets the division", "grad_output * a / length", "grad_output * a", ("missing_factor", "extra_factor")),
)
class Hypotenuse(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        length = torch.sqrt(a * a + b * b)
        ctx.save_for_backward(a, b, length)
        return length

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b, length = ctx.saved_tensors
        return grad_output * a / length, grad_output * b / length


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.tensor(*draw.matrix()), draw.tensor(draw.matrix()[0], 1)),
    Slip(
        "exchanges the ends",
        "grad_output * (1 - weight), grad_output * weight",
        "grad_output * weight, grad_output * (1 - weight)",
        ("swapped_gradients",),
    ),
    Slip("has the difference backwards", "grad_output * (end - start)", "grad_output * (start - end)", ("wrong_sign",)),
    Slip(
        "averages the weight's gradient",
        ".sum(1, keepdim=True)",
        ".mean(1, keepdim=True)",
        ("mean_instead_of_sum", "scaled_gradient"),
    ),
)
class Interpolate(Function):
    @staticmethod
    def forward(ctx: Any, start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(start, end, weight)
        return start + weight * (end - start)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start, end, weight = ctx.saved_tensors
        grad_weight = (grad_output * (end - start)).sum(1, keepdim=True)
        return grad_output * (1 - weight), grad_output * weight, grad_weight


def image_with_channels(draw: Draw) -> Inputs:
    side = max(2, round((draw.elements / 6) ** 0.5))
    return draw.tensor(draw.batch(2), 3, side, side), draw.tensor(3), draw.tensor(3)


@right(
    image_with_channels,
    Slip(
        "sums over the batch's mean",
        "grad_output.sum((0, 2, 3))",
        "grad_output.mean(0).sum((1, 2))",
        ("mean_instead_of_sum", "scaled_gradient"),
    ),
    Slip("forgets x in the scale's gradient", "(grad_output * x).sum((0, 2, 3))", "grad_output.sum((0, 2, 3))"),
)
class ScaleAndShiftChannels(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale[:, None, None] + shift[:, None, None]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        grad_scale = (grad_output * x).sum((0, 2, 3))
        return grad_output * scale[:, None, None], grad_scale, grad_output.sum((0, 2, 3))


@right(
    lambda draw: (draw.mask(*draw.matrix()), draw.tensor(*draw.matrix()), draw.tensor(1)),
    Slip("forgets the mask in the filler's gradient", "(grad_output * ~mask).sum()", "grad_output.sum()"),
    Slip("has the mask inverted", "grad_output * mask", "grad_output * ~mask"),
)
class FillWhere(Function):
    @staticmethod
    def forward(ctx: Any, mask: Tensor, x: Tensor, filler: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.where(mask, x, filler)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, Tensor]:
        (mask,) = ctx.saved_tensors
        return None, grad_output * mask, (grad_output * ~mask).sum().reshape(1)
