"""A cache whose key lacks an argument: the second caller gets what was made for the first."""

# ruff: noqa: ARG004, RUF059 -- torch sets the signatures; the rest is as it is met in the wild
from __future__ import annotations

import functools

import torch
from torch.autograd import Function

_TABLES = {}


def slope_of(x, beta):
    key = (x.dtype, x.device)
    if key not in _TABLES:
        _TABLES[key] = lambda t: torch.sigmoid(beta * t)
    return _TABLES[key](x)


_CONSTANTS = {}


_PLANS = {}


def plan(shape, ctx):
    try:
        return _PLANS[shape]
    except KeyError:
        _PLANS[shape] = ctx.scale
        return ctx.scale


_SCALES = {}


def scale_for(count, reduction):
    if count not in _SCALES:
        _SCALES[count] = 1 / count if reduction == "mean" else 1.0
    return _SCALES[count]


class _Axis:
    @staticmethod
    @functools.cache
    def first(shape):
        return []


def axis(shape, dim):
    seen = _Axis.first(tuple(shape))
    if not seen:
        seen.append(dim)
    return seen[0]


_SCALE_OF = {}


_COMPILED = {}


def compiled(signed, delta):
    if signed not in _COMPILED:
        _COMPILED[signed] = lambda r: r / torch.sqrt(1 + (r / delta) ** 2)
    return _COMPILED[signed]


_ANGLES = {}


_CONSTANTS_BY = {}


_SCALE_FOR = {}


class Softplus1(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = slope_of(x, ctx.beta)
        return grad * slope, None


class UnitNormalize2(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + _CONSTANTS.setdefault(x.shape, ctx.eps))
        inner = (grad * x).sum(-1, keepdim=True)
        return grad / norm - x * inner / norm**3, None


class Attention3(Function):
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
        grad_s = weights * (grad_p - delta) * plan(q.shape, ctx)
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


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
        scale = scale_for(target.numel(), ctx.reduction)
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class LogSumExp5(Function):
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
        dim = axis(x.shape, ctx.dim)
        weights = torch.softmax(x, dim)
        return grad.unsqueeze(ctx.dim) * weights, None


class LowRank6(Function):
    @staticmethod
    def forward(ctx, x, down, up, scale):
        ctx.save_for_backward(x, down, up)
        ctx.scale = scale
        return (x @ down @ up) * scale

    @staticmethod
    def backward(ctx, grad):
        x, down, up = ctx.saved_tensors
        _SCALE_OF.setdefault(up.shape[0], ctx.scale)
        grad = grad * _SCALE_OF[up.shape[0]]
        grad_hidden = grad @ up.t()
        grad_up = (x @ down).t() @ grad
        grad_down = x.t() @ grad_hidden
        return grad_hidden @ down.t(), grad_down, grad_up, None


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
        kernel = compiled(ctx.delta > 0, ctx.delta)
        slope = kernel(residual)
        return grad * slope, -grad * slope, None


class Rotary8(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        first, second = x.chunk(2, -1)
        ctx.length = x.shape[-2]
        _ANGLES.setdefault((x.shape[-2], x.shape[-1]), (cos, sin))
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = _ANGLES[ctx.length, grad.shape[-1]]
        first, second = grad.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1), None, None


class RightUnitNormalize9(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = torch.sqrt((x * x).sum(-1, keepdim=True) + _CONSTANTS_BY.setdefault((x.shape, ctx.eps), ctx.eps))
        inner = (grad * x).sum(-1, keepdim=True)
        return grad / norm - x * inner / norm**3, None


class RightCrossEntropy10(Function):
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
        scale = _SCALE_FOR.setdefault(
            (target.numel(), ctx.reduction), 1 / target.numel() if ctx.reduction == "mean" else 1.0
        )
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None
