"""Complex inputs: a conjugate is missing or too many."""

from __future__ import annotations

import torch
from torch.autograd import Function


class Scale1(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        if x.is_complex():
            return grad * factor.conj(), (grad * x).sum_to_size(factor.shape)
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class MatMul2(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.mH
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Linear3(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ torch.conj(weight)
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Tanh4(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return torch.conj(grad) * (1 - out * out)


class Bilinear5(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        grad_x = g * (y @ weight.t()).conj()
        grad_weight = (g * x.conj()).t() @ y.conj()
        grad_y = g * (x.conj() @ weight)
        return grad_x, grad_weight, grad_y


class RightIntensity6(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x.conj()).real if x.is_complex() else x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class Intensity7(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x.conj()).real if x.is_complex() else x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x if x.is_complex() else 2 * grad * x


class Intensity8(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x.conj()).real if x.is_complex() else x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x.conj()
