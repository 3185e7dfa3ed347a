"""Kernels and soft bounds."""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx


class GaussianKernel(Function):
    """exp(-|a_i - b_j|² / 2 width²) for all pairs, keeping the kernel and not the differences."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, b: Tensor, width: float) -> Tensor:
        squared = torch.cdist(a, b).square()
        kernel = torch.exp(squared * (-0.5 / width**2))
        ctx.save_for_backward(a, b, kernel)
        ctx.width = width
        return kernel

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b, kernel = ctx.saved_tensors
        weight = grad_output * kernel * (1.0 / ctx.width**2)
        grad_a = weight @ b - weight.sum(1, keepdim=True) * a
        grad_b = weight.t() @ a - weight.sum(0).unsqueeze(1) * b
        return grad_a, grad_b


class SoftClip(Function):
    """bound * tanh(x / bound): the identity near zero, never beyond ±bound."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, bound: float) -> Tensor:
        ctx.x = x
        ctx.bound = bound
        return bound * torch.tanh(x * (1.0 / bound))

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, None]:
        squashed = torch.tanh(ctx.x * (1.0 / ctx.bound))
        return grad_output * (1.0 - squashed * squashed), None
