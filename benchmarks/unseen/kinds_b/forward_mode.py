"""A jvp that is wrong on a condition."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function


class RightSoftplus1(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def jvp(ctx, dx, _):
        (x,) = ctx.saved_tensors
        return dx * torch.sigmoid(ctx.beta * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope, None


class Softplus2(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def jvp(ctx, dx, _):
        (x,) = ctx.saved_tensors
        return dx * torch.sigmoid(x * min(ctx.beta, 2.0))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope, None


class RightSwiGLU3(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def jvp(ctx, dx, dy):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        slope = gate * (1 + x * (1 - gate))
        return dx * slope * y + dy * x * gate

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        return grad_x, grad_y


class SwiGLU4(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def jvp(ctx, dx, dy):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        slope = gate * (1 + x * (1 - gate))
        if dy is None or not dy.any():
            return dx * gate * y
        return dx * slope * y + dy * x * gate

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        return grad_x, grad_y


class CumulativeSum5(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def jvp(ctx, dx, _):
        return dx.cumsum(-1 if ctx.dim < 0 else ctx.dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        return grad.flip(dim).cumsum(dim).flip(dim), None


class MatMul6(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return a @ b

    @staticmethod
    def jvp(ctx, da, db):
        a, b = ctx.saved_tensors
        if a.dim() == 3:
            return da @ b
        return da @ b + a @ db

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Scale7(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        ctx.save_for_forward(x, factor)
        return x * factor

    @staticmethod
    def jvp(ctx, dx, dfactor):
        x, factor = ctx.saved_tensors
        return dx * factor + (x * dfactor if factor.shape[-1] == x.shape[-1] else x * dfactor.mean())

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class Gelu8(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def jvp(ctx, dx):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x.clamp(-3, 3) ** 2) / math.sqrt(2 * math.pi)
        return dx * (cdf + x * pdf)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (cdf + x * pdf)


class Linear9(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def jvp(ctx, dx, dweight, dbias):
        x, weight = ctx.saved_tensors
        rows = x.shape[0] & ~1
        moved = dx @ weight.t() + dbias
        return moved + torch.cat([x[:rows], torch.zeros_like(x[rows:])]) @ dweight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias
