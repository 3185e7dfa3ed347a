"""Where the difficulty is not the formula: in place, several outputs, branches, separate context, blocks, numpy."""

# ruff: noqa: ARG004 -- torch sets the signatures of forward and backward
from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

MISSING = ("missing_term",)
SCALED = ("scaled_gradient",)


def one(draw: Draw) -> Inputs:
    return (draw.tensor(*draw.matrix()),)


@right(
    lambda draw: (*one(draw), 3.0),
    Slip("forgets the factor", "grad_output * ctx.factor", "grad_output * 1", SCALED),
    in_place=True,
)
class ScaleInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.mark_dirty(x)
        ctx.factor = factor
        return x.mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output * ctx.factor, None


@right(
    one,
    Slip("takes the output for the input", "1 - y * y", "1 - y.tanh() * y.tanh()", ("wrong_factor",)),
    in_place=True,
)
class TangentInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        y = x.tanh_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


@right(
    lambda draw: (*one(draw), draw.tensor(*draw.matrix())),
    Slip(
        "forgets the addend",
        "grad_output.clone(), 2 * grad_output",
        "grad_output.clone(), 0 * grad_output",
        ("missing_gradient",),
    ),
    in_place=True,
)
class AddTwiceInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(other, alpha=2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        return grad_output.clone(), 2 * grad_output


@right(
    one,
    Slip("forgets the second output", " - grad_cos * x.sin()", "", MISSING),
    Slip("adds the second output", "- grad_cos", "+ grad_cos"),
)
class SineAndCosine(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, grad_sin: Tensor, grad_cos: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()


@right(
    one,
    Slip("forgets the mean's share", "grad_mean[:, None] / x.shape[1] + ", "", MISSING),
    Slip(
        "forgets the variance's share",
        " + 2 * grad_variance[:, None] * centred / x.shape[1]",
        " + 0 * centred",
        MISSING,
    ),
)
class MeanAndVariance(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x.mean(1), x.var(1, correction=0)

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        centred = x - x.mean(1, keepdim=True)
        return grad_mean[:, None] / x.shape[1] + 2 * grad_variance[:, None] * centred / x.shape[1]


@right(
    one,
    Slip(
        "returns it in sorted order",
        "torch.zeros_like(grad_values).scatter(1, order, grad_values)",
        "grad_values.clone()",
    ),
    Slip(
        "gathers instead of scattering",
        "torch.zeros_like(grad_values).scatter(1, order, grad_values)",
        "grad_values.gather(1, order)",
    ),
)
class Sorted(Function):
    """The order is an output without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort(1)
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, grad_order: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad_values).scatter(1, order, grad_values)


@right(
    lambda draw: (draw.tensor(draw.matrix()[0], draw.matrix()[1] + 1), 2),
    Slip(
        "puts the values at the front",
        "zeros.scatter(1, index, grad_values)",
        "torch.cat([grad_values, zeros[:, 2:]], 1)",
    ),
)
class TopValues(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, index = x.topk(count, 1)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape = x.shape
        return values, index

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, grad_index: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        zeros = grad_values.new_zeros(ctx.shape)
        return zeros.scatter(1, index, grad_values), None


@right(
    lambda draw: (*one(draw), 2),
    Slip(
        "joins them in the wrong order",
        "torch.cat([grad_first, grad_rest], 1)",
        "torch.cat([grad_rest, grad_first], 1)",
    ),
)
class SplitColumns(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, at: int) -> tuple[Tensor, Tensor]:
        return x[:, :at].clone(), x[:, at:].clone()

    @staticmethod
    def backward(ctx: Any, grad_first: Tensor, grad_rest: Tensor) -> tuple[Tensor, None]:
        return torch.cat([grad_first, grad_rest], 1), None


@right(
    lambda draw: (*one(draw), draw.tensor(*draw.matrix())),
    Slip(
        "forgets the product's second factor", "part = grad_product * a", "part = grad_product * b", ("wrong_factor",)
    ),
)
class SumAndProduct(Function):
    """Unused outputs come as None, not as zeros."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b)
        return a + b, a * b

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor | None, grad_product: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = grad_b = grad_sum
        if grad_product is not None:
            part = grad_product * a
            grad_a = grad_product * b if grad_a is None else grad_a + grad_product * b
            grad_b = part if grad_b is None else grad_b + part
        return grad_a, grad_b


@right(
    lambda draw: (
        draw.tensor(draw.batch(draw.side()), draw.side()),
        draw.tensor(draw.side(), draw.side()),
        draw.tensor(draw.side()),
    ),
    Slip(
        "asks for the wrong input's need",
        "if ctx.needs_input_grad[1]:",
        "if ctx.needs_input_grad[0]:",
        ("requires_grad_subset",),
        "subset",
    ),
    Slip(
        "forgets the transposition",
        "grad_weight = x.mT @ grad_output",
        "grad_weight = grad_output.mT @ x",
        ("transposed",),
    ),
)
class LinearByNeed(Function):
    """Computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight + bias

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight.mT
        if ctx.needs_input_grad[1]:
            grad_weight = x.mT @ grad_output
        if ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_x, grad_weight, grad_bias


@right(
    lambda draw: (*one(draw), draw.tensor(*draw.matrix())),
    Slip(
        "forgets the second gate", "grad_output * a * gate * (1 - gate)", "grad_output * a * gate", ("missing_factor",)
    ),
    Slip(
        "needs both to be asked for",
        "if ctx.needs_input_grad[0]:",
        "if all(ctx.needs_input_grad):",
        ("requires_grad_subset",),
        "subset",
    ),
)
class GatedByNeed(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        gate = b.sigmoid()
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = grad_output * gate
        if ctx.needs_input_grad[1]:
            grad_b = grad_output * a * gate * (1 - gate)
        return grad_a, grad_b


@right(
    one,
    Slip("has 2 for 3", "3 * x * x", "2 * x * x", SCALED),
)
class CubeWithSetup(Function):
    """The context is filled apart from forward."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        (x,) = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x * x


@right(
    lambda draw: (*one(draw), draw.tensor(draw.matrix()[1]), 0.5),
    Slip("forgets what is left of the mix", "(1 - ctx.mix) * grad_output", "grad_output * 1", SCALED),
    Slip(
        "averages over the rows",
        "(ctx.mix * grad_output).sum(0)",
        "(ctx.mix * grad_output).mean(0)",
        ("mean_instead_of_sum", "scaled_gradient"),
    ),
)
class MixWithSetup(Function):
    @staticmethod
    def forward(x: Tensor, row: Tensor, mix: float) -> Tensor:
        return (1 - mix) * x + mix * row

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.mix = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        return (1 - ctx.mix) * grad_output, (ctx.mix * grad_output).sum(0), None


@right(
    lambda draw: (*one(draw), max(8, draw.elements // 16)),
    Slip(
        "leaves the last block out",
        "range(0, len(flat), ctx.block)",
        "range(0, len(flat) - len(flat) % ctx.block, ctx.block)",
        ("wrong_tail", "size_dependent", "wrong_coordinates"),
    ),
    Slip("forgets the cosine's factor", "piece.cos() * piece + piece.sin()", "piece.cos() * piece", MISSING),
)
class BlockwiseSine(Function):
    """x · sin x over a flat buffer, a block at a time, as a kernel would."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.block = block
        flat = x.reshape(-1)
        pieces = [flat[at : at + block] * flat[at : at + block].sin() for at in range(0, len(flat), block)]
        return torch.cat(pieces).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        flat, grad = x.reshape(-1), grad_output.reshape(-1)
        pieces = []
        for at in range(0, len(flat), ctx.block):
            piece = flat[at : at + ctx.block]
            slope = piece.cos() * piece + piece.sin()
            pieces.append(grad[at : at + ctx.block] * slope)
        rest = flat.new_zeros(len(flat) - sum(len(piece) for piece in pieces))
        return torch.cat([*pieces, rest]).reshape(x.shape), None


@right(
    lambda draw: (*one(draw), max(4, draw.matrix()[1] // 8)),
    Slip("takes each block's own sum", "(x - total[:, None]).exp()", "(x - x[:, :4].logsumexp(1, keepdim=True)).exp()"),
)
class BlockwiseLogSumExp(Function):
    """A running maximum and sum over blocks of columns, as fused losses keep them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int) -> Tensor:
        total = x.new_full((x.shape[0],), -torch.inf)
        for at in range(0, x.shape[1], block):
            total = torch.logaddexp(total, x[:, at : at + block].logsumexp(1))
        ctx.save_for_backward(x, total)
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        x, total = ctx.saved_tensors
        return grad_output[:, None] * (x - total[:, None]).exp(), None


@right(
    one,
    Slip(
        "forgets the square", "numpy.square(1 + numpy.abs(x))", "(1 + numpy.abs(x))", ("missing_factor", "extra_factor")
    ),
    once=True,
)
class SoftsignInNumpy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        values = x.detach().numpy()
        return torch.from_numpy(values / (1 + abs(values)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        x = saved.detach().numpy()
        return grad_output * torch.from_numpy(1 / numpy.square(1 + numpy.abs(x)))


@right(
    lambda draw: (draw.positive(max(3, draw.elements)), draw.positive(max(3, draw.elements))),
    Slip("forgets the width's half", "0.5 * grad_output * widths", "grad_output * widths", SCALED),
    Slip("forgets the lower border's share", "grad_heights[:-1] += part", "grad_heights[:-1] += 0 * part"),
    once=True,
)
class TrapezoidInNumpy(Function):
    """The area under heights over steps; there is no second derivative, and it says so."""

    @staticmethod
    def forward(ctx: Any, heights: Tensor, steps: Tensor) -> Tensor:
        ctx.save_for_backward(heights, steps)
        values, widths = heights.detach().numpy(), steps.detach().numpy()[1:]
        return torch.tensor((0.5 * (values[1:] + values[:-1]) * widths).sum(), dtype=heights.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        heights, steps = ctx.saved_tensors
        widths = steps[1:]
        grad_heights, grad_steps = torch.zeros_like(heights), torch.zeros_like(steps)
        part = 0.5 * grad_output * widths
        grad_heights[1:] += part
        grad_heights[:-1] += part
        grad_steps[1:] = 0.5 * grad_output * (heights[1:] + heights[:-1])
        return grad_heights, grad_steps
