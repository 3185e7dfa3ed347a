"""Lookups by integers: a row that was read twice gets two gradients; some of these return sparse ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

REPEATED = ("wrong_coordinates", "wrong_region", "missing_term")


def table_and_index(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.indices(rows, rows + 2)


@right(
    table_and_index,
    Slip(
        "overwrites where a row is read twice",
        "zeros.index_add(0, index, grad_output)",
        "zeros.index_copy(0, index, grad_output)",
        REPEATED,
    ),
    Slip(
        "divides by the number of reads",
        "index, grad_output)",
        "index, grad_output / len(index))",
        ("scaled_gradient", "mean_instead_of_sum"),
    ),
)
class EmbeddingLookup(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        return zeros.index_add(0, index, grad_output), None


@right(
    table_and_index,
    Slip("puts the rows in the wrong order", "index[None], grad_output,", "index[None], grad_output.flip(0),"),
)
class SparseEmbedding(Function):
    """Like `EmbeddingLookup`, but the gradient is a sparse tensor."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(index[None], grad_output, ctx.shape, check_invariants=False), None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.indices(draw.matrix()[1], draw.matrix()[0], 4)),
    Slip(
        "overwrites instead of adding",
        "zeros.scatter_add(1, index, grad_output)",
        "zeros.scatter(1, index, grad_output)",
        REPEATED,
    ),
)
class GatherColumns(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(ctx.shape)
        return zeros.scatter_add(1, index, grad_output), None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.indices(4, draw.matrix()[0]), 4),
    Slip(
        "averages within a segment",
        "grad_output[segment]",
        "grad_output[segment] / torch.bincount(segment, minlength=4)[segment][:, None]",
        ("mean_instead_of_sum", "wrong_coordinates", "wrong_region"),
    ),
    Slip("reads the segments backwards", "grad_output[segment]", "grad_output[3 - segment]"),
)
class SegmentSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, segment: Tensor, segments: int) -> Tensor:
        ctx.save_for_backward(segment)
        return x.new_zeros(segments, x.shape[1]).index_add(0, segment, x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (segment,) = ctx.saved_tensors
        return grad_output[segment], None, None


@right(
    lambda draw: (
        draw.tensor(*draw.matrix()),
        draw.indices(draw.matrix()[0], 2 * draw.matrix()[0]),
        draw.tensor(2 * draw.matrix()[0]),
    ),
    Slip("forgets the weight", "weight[:, None] * grad_output", "1 * grad_output"),
    Slip(
        "averages the weight's gradient",
        "(x[index] * grad_output).sum(1)",
        "(x[index] * grad_output).mean(1)",
        ("mean_instead_of_sum", "scaled_gradient"),
    ),
)
class WeightedGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, index, weight)
        return weight[:, None] * x[index]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, Tensor]:
        x, index, weight = ctx.saved_tensors
        grad_x = torch.zeros_like(x).index_add(0, index, weight[:, None] * grad_output)
        return grad_x, None, (x[index] * grad_output).sum(1)


def edges(draw: Draw) -> Inputs:
    rows, columns = draw.matrix()
    count = rows + 3
    return draw.indices(rows, 2, count), draw.tensor(count), draw.tensor(rows, columns), rows


@right(
    edges,
    Slip("reads the sources for the targets", "grad_output[edge[0]]", "grad_output[edge[1]]"),
    Slip("forgets the values", "value[:, None] * grad_at", "grad_at * 1"),
)
class SparseTimesDense(Function):
    """A sparse matrix as coordinates and values, times a dense one."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, value: Tensor, dense: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(edge, value, dense)
        zeros = dense.new_zeros(rows, dense.shape[1])
        return zeros.index_add(0, edge[0], value[:, None] * dense[edge[1]])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, Tensor, None]:
        edge, value, dense = ctx.saved_tensors
        grad_at = grad_output[edge[0]]
        grad_dense = torch.zeros_like(dense).index_add(0, edge[1], value[:, None] * grad_at)
        return None, (grad_at * dense[edge[1]]).sum(1), grad_dense, None
