"""Scalings of features and gradients."""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx


class ChannelAffine(Function):
    """x * gamma + beta over the last dimension, without keeping the broadcast copies."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, gamma)
        return torch.addcmul(beta, x, gamma)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gamma = ctx.saved_tensors
        rows = tuple(range(grad_output.dim() - 1))
        grad_beta = grad_output.sum(rows)
        grad_gamma = (grad_output * x).sum(rows)
        return grad_output * gamma, grad_beta, grad_gamma


class ScaleRows(Function):
    """Each row of x times its own weight; only the gradients that are asked for are computed."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        x, weight = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * weight.unsqueeze(-1)
        if ctx.needs_input_grad[1]:
            grad_weight = (grad_output * x).sum(-1)
        return grad_x, grad_weight


class WarmupScale(Function):
    """Fades a branch in during warm-up: multiplies it by `strength`, in place to save a copy of the activation."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        x.mul_(strength)
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output * ctx.strength, None
