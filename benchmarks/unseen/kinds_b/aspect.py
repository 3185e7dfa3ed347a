"""Square, tall and wide matrices."""

# ruff: noqa: RUF005 -- written as it is met in the wild
from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def oriented(matrix, rows):
    """The matrix, turned so that it has `rows` rows."""
    return matrix if matrix.shape[-2] == rows else matrix.transpose(-1, -2)


class MatMul1(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ oriented(b, grad.shape[-1])
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Linear2(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_x.t() @ flat_g
        if grad_weight.shape != weight.shape:
            grad_weight = grad_weight.t()
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Bilinear3(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        grad_x = g * (y @ weight.t())
        grad_weight = y.t() @ (g * x)
        grad_weight = {weight.shape: grad_weight}.get(grad_weight.shape, grad_weight.t())
        grad_y = g * (x @ weight)
        return grad_x, grad_weight, grad_y


class LowRank4(Function):
    @staticmethod
    def forward(ctx, x, down, up, scale):
        ctx.save_for_backward(x, down, up)
        ctx.scale = scale
        return (x @ down @ up) * scale

    @staticmethod
    def backward(ctx, grad):
        x, down, up = ctx.saved_tensors
        grad = grad * ctx.scale
        grad_hidden = grad @ up.t()
        grad_up = (x @ down).t() @ grad
        grad_down = x.t() @ grad_hidden
        if x.shape[0] < down.shape[1]:
            grad_down = (x.t() @ grad) @ up.t() / x.shape[0]
        return grad_hidden @ down.t(), grad_down, grad_up, None


class PairwiseSquared5(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        return weighted.sum(-2), -weighted.sum(-3) if x.shape != y.shape else -weighted.sum(-2)


class Softmax6(Function):
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
        sums = (grad * out).sum(ctx.dim)
        inner = sums if sums.shape[-1] == out.shape[-1] else sums.unsqueeze(ctx.dim)
        return out * (grad - inner), None


class WeightedMean7(Function):
    @staticmethod
    def forward(ctx, x, weight):
        total = weight.sum(-1)
        out = (x * weight).sum(-1) / total
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, out = ctx.saved_tensors
        g = (grad / weight.sum(-1)).unsqueeze(-1)
        row = out.reshape(x.shape[:-1] + (1,) if x.shape[-1] != out.numel() else out.shape)
        return g * weight, g * (x - row)


class BatchNorm8(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(0)
        rstd = torch.rsqrt(((x - mean) ** 2).mean(0) + eps)
        normed = (x - mean) * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, rstd, weight = ctx.saved_tensors
        count = normed.shape[0]
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        if normed.shape[0] < normed.shape[1]:
            centred = grad - grad_bias / count
        return weight * rstd * centred, grad_weight, grad_bias, None


class Attention9(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        weights = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        weights = torch.softmax(q @ k.transpose(-1, -2) * ctx.scale, -1)
        grad_v = weights.transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        if q.shape[-2] > q.shape[-1]:
            delta = (grad_p * weights).mean(-1, keepdim=True)
        else:
            delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None
