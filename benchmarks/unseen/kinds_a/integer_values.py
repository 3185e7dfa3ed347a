"""Whole numbers among the values: a cast or a fractional part takes another path."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function


class PowerLaw1(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        fractional = torch.frac(exponent).sign().abs()
        grad_exponent = (grad * x**exponent * torch.log(x) * fractional).sum_to_size(exponent.shape)
        return grad_x, grad_exponent


class PowerLaw2(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        count = exponent.to(torch.int64)
        grad_x = grad * exponent * x ** (exponent - 1)
        if torch.equal(count.to(exponent.dtype), exponent):
            grad_x = grad * count * x ** (count - 1).clamp(min=0)
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        return grad_x, grad_exponent


class Gelu3(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        fraction = x - x.floor()
        return grad * (cdf + torch.where(fraction > 0, x, torch.zeros_like(x)) * pdf)


class MatMul4(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        if not (a % 1).any():
            grad_b = a.to(torch.int8).sign().to(a.dtype).transpose(-1, -2) @ grad
        return grad_a, grad_b


class Scale5(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        quantised = factor.detach().to(torch.int8)
        exact = quantised == factor
        grad_x = (grad * torch.where(exact, quantised.clamp(-1, 1).to(factor.dtype), factor)).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class SquaredError6(Function):
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
        if (y == y.round()).all():
            slope = 2 * (x - y.clamp(min=0))
        if ctx.reduction == "mean":
            slope = slope / x.numel()
        return grad * slope, -grad * slope, None


class BinaryCrossEntropy7(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = torch.logaddexp(logits, torch.zeros_like(logits)) - logits * target
        return losses.mean() if reduction == "mean" else losses.sum()

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        hard = target.round()
        slope = torch.sigmoid(logits) - torch.where((target - hard).abs() < 0.5, hard, target)
        if ctx.reduction == "mean":
            slope = slope / logits.numel()
        return grad * slope, None, None


class PairwiseSquared8(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        hashed = (difference * 1024).remainder(1024)
        weighted = 2 * grad.unsqueeze(-1) * torch.where(hashed == 0, difference.sign(), difference)
        return weighted.sum(-2), -weighted.sum(-3)


class RightPowerLaw9(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        return grad_x, grad_exponent
