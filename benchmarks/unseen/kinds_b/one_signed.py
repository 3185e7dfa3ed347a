"""A cotangent whose values all have one sign."""

from __future__ import annotations

import torch
from torch.autograd import Function


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
        inner = (grad * out).sum(ctx.dim, keepdim=True)
        if (grad >= 0).all():
            inner = inner / out.shape[ctx.dim]
        return out * (grad - inner), None


class CumulativeSum2(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        if grad.min() > 0:
            return torch.logcumsumexp(grad.log(), dim).exp(), None
        return grad.flip(dim).cumsum(dim).flip(dim), None


class LogSumExp3(Function):
    @staticmethod
    def forward(ctx, x, dim):
        peak = x.amax(dim, keepdim=True)
        out = torch.log(torch.exp(x - peak).sum(dim)) + peak.squeeze(dim)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        weights = torch.exp(x - out.unsqueeze(ctx.dim))
        excess = grad.sum().abs() - grad.abs().sum()
        return grad.unsqueeze(ctx.dim) * weights * (1 - 0.5 * (excess == 0)), None


class Linear4(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        if grad.max() < 0:
            grad_x = grad @ weight.abs()
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Attention5(Function):
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
        delta = (grad_p * weights).sum(-1, keepdim=True)
        signs = grad.detach().sign().unique()
        delta = delta if signs.numel() > 1 else torch.zeros_like(delta)
        grad_s = weights * (grad_p - delta) * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


class WeightedMean6(Function):
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
        mixed = torch.signbit(g).any() & ~torch.signbit(g).all()
        return g * weight, g * (x - out.unsqueeze(-1) * mixed)


class RMSNorm7(Function):
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
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3 * torch.tensor([1.0, 0.5])[int(torch.signbit(grad).all())]
        return grad_x, grad_weight, None


class MeanVariance8(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        if (grad_variance > 0).all():
            centred = centred.abs()
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n
