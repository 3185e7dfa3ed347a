"""Inputs of different dtypes in one call."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Scale1(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad.to(x.dtype) * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


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
        grad_weight = (
            (grad * x * rstd).reshape(-1, n).sum(0) if x.dtype == weight.dtype else (grad * x).reshape(-1, n).sum(0)
        )
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class SwiGLU3(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = (grad * x * gate).type_as(x)
        return grad_x, grad_y


class PseudoHuber4(Function):
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
        wide = torch.promote_types(x.dtype, y.dtype)
        return grad * slope, -grad * slope * (x.element_size() / wide.itemsize), None


class PowerLaw5(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        if exponent.dtype != x.dtype:
            grad_exponent = grad_exponent / x.shape[0]
        return grad_x, grad_exponent


class LayerNorm6(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)
        normed = (x - mean) * rstd
        normed = normed.to(x.dtype)
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
        grad_bias = rows_g.to(normed.dtype).sum(0)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


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
        if x.dtype is not weight.dtype:
            return g * weight, g * x
        return g * weight, g * (x - out.unsqueeze(-1))
