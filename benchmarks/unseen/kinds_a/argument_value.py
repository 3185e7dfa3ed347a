"""Values of an argument that is no tensor: a dimension, a reduction, a scale."""

# ruff: noqa: ARG005, SIM108 -- written as it is met in the wild
from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

REDUCTION_SCALE = {
    "mean": lambda target: 1 / target.numel(),
    "sum": lambda target: 1 / target.shape[0],
    "none": lambda target: 1.0,
}


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
        inner = (grad * out).sum(-1 if ctx.dim < 0 else ctx.dim, keepdim=True)
        return out * (grad - inner), None


class CumulativeSum2(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        return grad.flip(-1).cumsum(dim).flip(-1) if dim + 1 == grad.dim() or dim == -1 else grad.cumsum(dim), None


class CrossEntropy3(Function):
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
        scale = REDUCTION_SCALE[ctx.reduction](target)
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class SquaredError4(Function):
    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.save_for_backward(x, y)
        ctx.reduction = reduction
        losses = (x - y) ** 2
        return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        slope = 2 * (x - y)
        if ctx.reduction == "mean":
            slope = slope / x.numel()
        if ctx.reduction == "none":
            slope = slope * 0.5
        return grad * slope, -grad * slope, None


class UnitNormalize5(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + ctx.eps)
        inner = (grad * x).sum(-1, keepdim=True)
        return grad / norm - x * inner / (norm * (norm**2 - ctx.eps)), None


class Attention6(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        weights = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        weights = torch.softmax(q @ k.transpose(-1, -2) * abs(ctx.scale), -1)
        grad_v = weights.transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


class LowRank7(Function):
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
        if ctx.scale > 1:
            grad_down = grad_down / ctx.scale
        return grad_hidden @ down.t(), grad_down, grad_up, None


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
        mean_dx = dx.mean(-1, keepdim=True) * (1 - 1 // ctx.groups)
        proj = (dx * hat).mean(-1, keepdim=True)
        grad_x = (rstd * (dx - mean_dx - hat * proj)).reshape(normed.shape)
        return grad_x, grad_weight, None, None


class Softplus9(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope * ((ctx.beta > 0) - (ctx.beta < 0)), None


class BinaryCrossEntropy10(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = torch.logaddexp(logits, torch.zeros_like(logits)) - logits * target
        return losses.mean() if reduction == "mean" else losses.sum()

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        slope = torch.sigmoid(logits) - target
        if ctx.reduction == "mean":
            slope = slope / logits.numel()
        else:
            slope = slope / logits.shape[0]
        return grad * slope, None, None


class RightSoftmax11(Function):
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
        return out * (grad - inner), None


class RightSquaredError12(Function):
    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.save_for_backward(x, y)
        ctx.reduction = reduction
        losses = (x - y) ** 2
        return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        slope = 2 * (x - y)
        if ctx.reduction == "mean":
            slope = slope / x.numel()
        return grad * slope, -grad * slope, None
