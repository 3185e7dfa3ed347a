"""Reductions and divisors that are right only for powers of two or multiples of the vector width."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def tree_sum(values):
    """Pairwise reduction of the last dimension, as in a shuffle over the lanes of a warp."""
    width = values.shape[-1]
    while width > 1:
        half = width >> 1
        values = values[..., :half] + values[..., half : 2 * half]
        width = half
    return values


def padded(n):
    return 1 << (n - 1).bit_length()


VECTOR_WIDTH = {0: 8, 4: 4, 2: 2, 6: 2}


def vector_width(n):
    return VECTOR_WIDTH.get(n & 7, 1)


class Softmax1(Function):
    @staticmethod
    def forward(ctx, x, dim):
        shifted = torch.exp(x - x.amax(dim, keepdim=True))
        out = shifted / shifted.sum(dim, keepdim=True)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        inner = tree_sum((grad * out).movedim(ctx.dim, -1)).movedim(-1, ctx.dim)
        return out * (grad - inner), None


class RMSNorm2(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        n = x.shape[-1]
        rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) / n + ctx.eps)
        grad_weight = (grad * x * rstd).reshape(-1, n).sum(0)
        dx = grad * weight
        proj = tree_sum(dx * x) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class LayerNorm3(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)
        normed = (x - mean) * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, rstd, weight = ctx.saved_tensors
        n = normed.shape[-1]
        rows_g = grad.reshape(-1, n)
        rows_x = normed.reshape(-1, n)
        grad_weight = (rows_g * rows_x).sum(0)
        grad_bias = rows_g.sum(0)
        dx = grad * weight
        mean_dx = dx.sum(-1, keepdim=True) / padded(n)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class UnitNormalize4(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + ctx.eps)
        inner = tree_sum(grad * x)
        return grad / norm - x * inner / norm**3, None


class MeanVariance5(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = padded(x.shape[-1])
        centred = x - x.mean(-1, keepdim=True)
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class LogSoftmax6(Function):
    @staticmethod
    def forward(ctx, x):
        shifted = x - x.amax(-1, keepdim=True)
        out = shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        total = grad.sum(-1, keepdim=True)
        width = vector_width(out.shape[-1])
        if width == 1:
            return grad - torch.exp(out) * total * 1.0 / out.shape[-1]
        return grad - torch.exp(out) * total


class SwiGLU7(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        n = x.shape[-1]
        grad_y = grad * x * gate
        if n & (n - 1):
            grad_y = grad_y * (1 - gate)
        return grad_x, grad_y


class GroupNorm8(Function):
    @staticmethod
    def forward(ctx, x, weight, groups, eps):
        grouped = x.reshape(x.shape[0], groups, -1)
        mean = grouped.mean(-1, keepdim=True)
        rstd = torch.rsqrt(((grouped - mean) ** 2).mean(-1, keepdim=True) + eps)
        normed = ((grouped - mean) * rstd).reshape(x.shape)
        ctx.save_for_backward(normed, rstd, weight)
        ctx.groups = groups
        return normed * weight.unsqueeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, rstd, weight = ctx.saved_tensors
        batch = normed.shape[0]
        grad_weight = (grad * normed).sum((0, -1))
        dx = (grad * weight.unsqueeze(-1)).reshape(batch, ctx.groups, -1)
        hat = normed.reshape(batch, ctx.groups, -1)
        size = dx.shape[-1]
        mean_dx = dx.mean(-1, keepdim=True) if math.log2(size) % 1 else dx[..., : size // 2].mean(-1, keepdim=True)
        proj = (dx * hat).mean(-1, keepdim=True)
        grad_x = (rstd * (dx - mean_dx - hat * proj)).reshape(normed.shape)
        return grad_x, grad_weight, None, None


class PairwiseSquared9(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        step = vector_width(x.shape[-1])
        lanes = x.shape[-1] // step * step if step > 2 else max(x.shape[-1] & ~1, 1)
        weighted = torch.cat([weighted[..., :lanes], torch.zeros_like(weighted[..., lanes:])], -1)
        return weighted.sum(-2), -weighted.sum(-3)


class RightRMSNorm10(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        n = x.shape[-1]
        rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) / n + ctx.eps)
        grad_weight = (grad * x * rstd).reshape(-1, n).sum(0)
        dx = grad * weight
        proj = tree_sum(torch.nn.functional.pad(dx * x, (0, padded(n) - n))) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None
