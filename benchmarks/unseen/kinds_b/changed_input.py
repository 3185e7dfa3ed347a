"""A tensor written to between forward and backward, unseen by autograd's version check."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Gelu1(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        x = ctx.x
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (cdf + x * pdf)


class LogCosh2(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return torch.logaddexp(x, -x) - math.log(2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.tanh(x)


class UnitNormalize3(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.values = x.detach().numpy()
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x = torch.from_numpy(ctx.values)
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + ctx.eps)
        inner = (grad * x).sum(-1, keepdim=True)
        return grad / norm - x * inner / norm**3, None


class MatMul4(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        ctx.other = b
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        (a,), b = ctx.saved_tensors, ctx.other
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Tanh5(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.out = out
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        out = ctx.out
        return grad * (1 - out * out)


class Rotary6(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        first, second = x.chunk(2, -1)
        ctx.table = (cos, sin)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.table
        first, second = grad.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1), None, None


class Embedding7(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.index = index
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        index = ctx.index
        width = grad.shape[-1]
        flat = grad.reshape(-1, width)
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_add(0, index.reshape(-1), flat), None


class SquaredError8(Function):
    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.pair = [x, y]
        ctx.reduction = reduction
        losses = (x - y) ** 2
        return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.pair
        slope = 2 * (x - y)
        if ctx.reduction == "mean":
            slope = slope / x.numel()
        return grad * slope, -grad * slope, None


class RightGelu9(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (cdf + x * pdf)
