"""Activations that keep one tensor for backward."""

import math

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F


class SquaredReLU(Function):
    """relu(x)², the activation of Primer (So et al., 2021)."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return grad_output * positive


class LogCosh(Function):
    """log(cosh(x)) without overflow: |x| + softplus(-2|x|) - log 2."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        magnitude = x.abs()
        ctx.save_for_backward(x)
        return magnitude + F.softplus(-2.0 * magnitude) - math.log(2.0)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> Tensor:
        x, magnitude = ctx.saved_tensors
        return grad_output * torch.tanh(x)


class Mish(Function):
    """x * tanh(softplus(x)), recomputed in backward from x alone."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inner = torch.tanh(F.softplus(x))
        return grad_output * (inner + x * torch.sigmoid(x) * (1.0 - inner * inner))
