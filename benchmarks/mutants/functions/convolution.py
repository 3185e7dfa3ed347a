"""Convolutions and pooling: windows that overlap, borders, channels."""

# ruff: noqa: ARG004 -- torch sets the signatures of forward and backward
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right

AVERAGED = ("mean_instead_of_sum", "scaled_gradient", "wrong_reduction")


def signal_and_kernel(draw: Draw) -> Inputs:
    return draw.tensor(draw.batch(2), 2, max(5, draw.elements // 4)), draw.tensor(3, 2, 3), draw.tensor(3)


def image(draw: Draw, channels: int) -> Tensor:
    side = max(4, round((draw.elements / (2 * channels)) ** 0.5))
    return draw.tensor(draw.batch(2), channels, side, side)


@right(
    signal_and_kernel,
    Slip(
        "averages the bias's gradient over the batch", "grad_output.sum((0, 2))", "grad_output.mean(0).sum(1)", AVERAGED
    ),
    Slip("flips the kernel", "grad_output, weight)", "grad_output, weight.flip(-1))"),
    Slip(
        "forgets the first position's share",
        "windows = x.unfold(2, 3, 1)",
        "windows = x.unfold(2, 3, 1) * (torch.arange(grad_output.shape[2]) > 0)[:, None]",
    ),
)
class ConvolutionOfSignal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.conv1d(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        windows = x.unfold(2, 3, 1)
        grad_weight = torch.einsum("bol,bilk->oik", grad_output, windows)
        return functional.conv_transpose1d(grad_output, weight), grad_weight, grad_output.sum((0, 2))


@right(
    lambda draw: (image(draw, 2), draw.tensor(3, 2, 3, 3), 1),
    Slip(
        "is off by one column",
        "x.shape, weight, grad_output, padding=ctx.padding",
        "x.shape, weight, grad_output.roll(1, -1), padding=ctx.padding",
    ),
    Slip(
        "flips the weight's gradient",
        "torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, padding=ctx.padding)",
        "torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, padding=ctx.padding).flip(-1)",
        ("flipped",),
    ),
)
class ConvolutionOfImage(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return functional.conv2d(x, weight, padding=padding)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = torch.nn.grad.conv2d_input(x.shape, weight, grad_output, padding=ctx.padding)
        return grad_x, torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, padding=ctx.padding), None


@right(
    lambda draw: (image(draw, 2), draw.tensor(2, 1, 3, 3), 2),
    Slip("reads grad_output backwards", "weight, grad_output, stride", "weight, grad_output.flip(-1), stride"),
    Slip(
        "mixes the channels",
        "stride=ctx.stride, groups=2)\n        return",
        "stride=ctx.stride, groups=2).flip(0)\n        return",
        ("flipped", "wrong_coordinates"),
    ),
)
class DepthwiseConvolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return functional.conv2d(x, weight, stride=stride, groups=2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = torch.nn.grad.conv2d_input(x.shape, weight, grad_output, stride=ctx.stride, groups=2)
        grad_weight = torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, stride=ctx.stride, groups=2)
        return grad_x, grad_weight, None


@right(
    lambda draw: (draw.tensor(draw.batch(2), max(2, draw.elements // 6), 3), draw.tensor(3, 3)),
    Slip(
        "takes the taps in the forward's order",
        "padded[:, 2 - tap : 2 - tap + length]",
        "padded[:, tap : tap + length]",
    ),
    Slip("forgets the other taps", "range(len(weight))", "range(1)", ("missing_term",)),
)
class CausalDepthwiseFilter(Function):
    """Each step sees itself and the two before it, channel by channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        length = x.shape[1]
        before = functional.pad(x, (0, 0, 2, 0))
        return before[:, :length] * weight[0] + before[:, 1 : 1 + length] * weight[1] + before[:, 2:] * weight[2]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        length = x.shape[1]
        padded = functional.pad(grad_output, (0, 0, 0, 2))
        grad_x = sum(padded[:, 2 - tap : 2 - tap + length] * weight[tap] for tap in range(len(weight)))
        before = functional.pad(x, (0, 0, 2, 0))
        grad_weight = torch.stack([(grad_output * before[:, tap : tap + length]).sum((0, 1)) for tap in range(3)])
        return grad_x, grad_weight


@right(
    lambda draw: (draw.tensor(draw.batch(2), 3, 2 * max(2, draw.elements // 12)),),
    Slip("forgets the half", "/ 2", "/ 1", ("scaled_gradient",)),
    Slip(
        "gives it to the first of a pair only", "torch.stack([half, half], -1)", "torch.stack([2 * half, 0 * half], -1)"
    ),
)
class AveragePairs(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return functional.avg_pool1d(x, 2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        half = grad_output / 2
        return torch.stack([half, half], -1).flatten(-2)


@right(
    lambda draw: (image(draw, 2),),
    Slip("spreads it over the window", "grad_output.flatten(2)", "grad_output.flatten(2) / 4", ("scaled_gradient",)),
)
class LargestOfWindow(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, index = functional.max_pool2d(x, 2, return_indices=True)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape = x.shape
        return values, index

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_index: Tensor) -> Tensor:
        (index,) = ctx.saved_tensors
        batch, channels, height, width = ctx.shape
        zeros = grad_output.new_zeros(batch, channels, height * width)
        return zeros.scatter_add(2, index.flatten(2), grad_output.flatten(2)).reshape(ctx.shape)
