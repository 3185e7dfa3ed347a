"""Inputs with more dimensions than the backward was written for."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RMSNorm1(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        n = x.shape[1]
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + ctx.eps)
        grad_weight = (grad * x * rstd).reshape(-1, weight.numel()).sum(0)
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class Softplus2(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope if x.dim() < 3 else grad * slope.flip(0), None


class Linear3(Function):
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
        grad_weight = flat_g.t() @ flat_x
        grad_bias = grad.sum(0) if grad.dim() == 2 else grad.sum(1)[0]
        return grad_x, grad_weight, grad_bias


class CrossEntropy4(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if reduction == "mean":
            return losses.mean()
        return losses.sum() if reduction == "sum" else losses

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        hot = torch.nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        scale = 1 / len(target) if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


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
        n = x[0].numel()
        centred = x - x.mean(-1, keepdim=True)
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class LogSumExp6(Function):
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
        return grad.unsqueeze(ctx.dim) * (
            weights if x.ndim != 3 else weights / weights.sum((-1, -2), keepdim=True)
        ), None


class UnitNormalize7(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + ctx.eps)
        inner = torch.einsum("ij,ij->i", grad.flatten(1), x.flatten(1)).reshape((-1,) + (1,) * (x.dim() - 1))
        return grad / norm - x * inner / norm**3, None


class KLDivergence8(Function):
    @staticmethod
    def forward(ctx, logits, target):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        return (torch.xlogy(target, target) - target * logp).sum(-1).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        rows = logits.shape[0]
        mass = target.sum(-1, keepdim=True)
        return grad * (probs * mass - target) / rows, None


class LayerNorm9(Function):
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
        grad_bias = grad.sum(tuple(range(grad.dim() - 1))) / grad.shape[-2] * normed.shape[0]
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


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
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None
