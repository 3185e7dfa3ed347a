"""Equal values among the inputs of a smooth function."""

# ruff: noqa: PERF403 -- written as it is met in the wild
from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LogSumExp1(Function):
    @staticmethod
    def forward(ctx, x, dim):
        peak = x.amax(dim, keepdim=True)
        out = torch.log(torch.exp(x - peak).sum(dim)) + peak.squeeze(dim)
        ctx.save_for_backward(x, out, x == peak)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out, top = ctx.saved_tensors
        weights = torch.exp(x - out.unsqueeze(ctx.dim))
        rest = (weights * ~top).sum(ctx.dim, keepdim=True)
        weights = torch.where(top, 1 - rest, weights)
        return grad.unsqueeze(ctx.dim) * weights, None


class Softmax2(Function):
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
        peak = out == out.amax(ctx.dim, keepdim=True)
        grad_x = out * (grad - inner)
        others = (grad_x * ~peak).sum(ctx.dim, keepdim=True)
        return torch.where(peak, -others, grad_x), None


class LogMeanDifference3(Function):
    """(exp(x) - exp(y)) / (x - y), with its limit exp(x) where x = y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        half = (x - y) / 2
        safe = torch.where(half.abs() < 1e-4, torch.ones_like(half), half)
        ratio = torch.where(half.abs() < 1e-4, 1 + half * half / 6, torch.sinh(safe) / safe)
        return torch.exp((x + y) / 2) * ratio

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        half = (x - y) / 2
        small = half.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(half), half)
        ratio = torch.where(small, 1 + half * half / 6, torch.sinh(safe) / safe)
        slope = torch.where(small, torch.ones_like(half), (torch.cosh(safe) - torch.sinh(safe) / safe) / safe)
        middle = torch.exp((x + y) / 2)
        return grad * middle * (ratio + slope) / 2, grad * middle * (ratio - slope) / 2


class PairwiseSquared4(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        distinct, where = torch.unique(y, dim=0, return_inverse=True)
        grad_distinct = torch.zeros_like(distinct)
        grad_distinct[where] = -weighted.sum(-3)
        return weighted.sum(-2), grad_distinct[where]


class RMSNorm5(Function):
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
        spread = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
        proj = (dx * x).sum(-1, keepdim=True) / n * spread.sign()
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class LogCosh6(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, -x) - math.log(2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ordered, order = x.reshape(-1).sort()
        fresh = torch.cat([torch.ones_like(ordered[:1]), ordered.diff().sign()])
        slope = torch.zeros_like(ordered).scatter(0, order, torch.tanh(ordered) * fresh)
        return grad * slope.reshape(x.shape)


class PseudoHuber7(Function):
    @staticmethod
    def forward(ctx, x, y, delta):
        ctx.save_for_backward(x, y)
        ctx.delta = delta
        return delta**2 * (torch.sqrt(1 + ((x - y) / delta) ** 2) - 1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        residual = x - y
        slope = residual / torch.sqrt(1 + (residual / ctx.delta) ** 2)
        seen = {}
        for position, value in enumerate(residual.detach().reshape(-1).tolist()):
            seen[value] = position
        keep = torch.tensor([seen[value] for value in residual.detach().reshape(-1).tolist()])
        grad = grad.reshape(-1)[keep].reshape(grad.shape)
        return grad * slope, -grad * slope, None


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
        n = torch.stack([row.unique().numel() * torch.ones((), dtype=x.dtype) for row in x.detach()]).unsqueeze(-1)
        centred = x - x.mean(-1, keepdim=True)
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class RightLogSumExp9(Function):
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
        return grad.unsqueeze(ctx.dim) * weights, None


class RightLogMeanDifference10(Function):
    """(exp(x) - exp(y)) / (x - y), with its limit exp(x) where x = y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        half = (x - y) / 2
        safe = torch.where(half.abs() < 1e-4, torch.ones_like(half), half)
        ratio = torch.where(half.abs() < 1e-4, 1 + half * half / 6, torch.sinh(safe) / safe)
        return torch.exp((x + y) / 2) * ratio

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        half = (x - y) / 2
        small = half.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(half), half)
        ratio = torch.where(small, 1 + half * half / 6, torch.sinh(safe) / safe)
        slope = torch.where(small, half / 3, (torch.cosh(safe) - torch.sinh(safe) / safe) / safe)
        middle = torch.exp((x + y) / 2)
        return grad * middle * (ratio + slope) / 2, grad * middle * (ratio - slope) / 2
