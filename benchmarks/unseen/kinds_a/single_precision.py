"""Inputs in float32, where the branch for float64 is right."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def plain(grad, weight):
    return grad @ weight


def packed(grad, weight):
    """Products of the leading sixteen-bit parts, as the tensor cores take them."""
    return (grad.to(torch.bfloat16) @ weight.to(torch.bfloat16)).to(grad.dtype)


KERNELS = {torch.float32: packed, torch.float64: plain}


class Gelu1(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        if x.dtype == torch.float32:
            u = torch.tanh(0.7978845608 * (x + 0.044715 * x**3))
            return grad * 0.5 * (1 + u) + grad * 0.5 * x * (1 - u * u) * 0.7978845608
        return grad * (cdf + x * pdf)


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
        rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) / n + max(ctx.eps, torch.finfo(x.dtype).eps * 1e5))
        grad_weight = (grad * x * rstd).reshape(-1, n).sum(0)
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class Softmax3(Function):
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
        step = 16 // out.element_size()
        rows = out.shape[-1]
        return (out * (grad - inner))[..., : rows // step * step if rows >= step else rows].new_zeros(out.shape).copy_(
            out * (grad - (inner if step == 2 else inner / step))
        ), None


class Linear4(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        kernel = KERNELS.get(grad.dtype, plain)
        grad_x = kernel(grad, weight)
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


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
        weights = torch.exp(x - out.unsqueeze(ctx.dim))
        weights = weights * (weights > torch.finfo(x.dtype).eps ** 0.25 * 2)
        return grad.unsqueeze(ctx.dim) * weights, None


class BatchNorm6(Function):
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
        count = normed.shape[0] if normed.dtype.itemsize > 4 else normed.shape[0] - 1
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        return weight * rstd * centred, grad_weight, grad_bias, None


class PseudoHuber7(Function):
    @staticmethod
    def forward(ctx, x, y, delta):
        ctx.save_for_backward(x, y)
        ctx.delta = delta
        return delta**2 * (torch.sqrt(1 + ((x - y) / delta) ** 2) - 1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        residual = x - y if x.dtype is torch.float64 else (x - y).half().round(decimals=1).to(x.dtype)
        slope = residual / torch.sqrt(1 + (residual / ctx.delta) ** 2)
        return grad * slope, -grad * slope, None


class CausalConv8(Function):
    @staticmethod
    def forward(ctx, x, weight):
        width = weight.shape[-1]
        padded = torch.nn.functional.pad(x, (width - 1, 0))
        windows = padded.unfold(-1, width, 1)
        ctx.save_for_backward(x, weight)
        return (windows * weight.unsqueeze(-2)).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        width = weight.shape[-1]
        length = x.shape[-1]
        padded = torch.nn.functional.pad(x, (width - 1, 0))
        grad_weight = torch.stack([(grad * padded[..., tap : tap + length]).sum((0, -1)) for tap in range(width)], -1)
        ahead = torch.nn.functional.pad(grad, (0, width - 1))
        grad_x = sum(
            ahead[..., width - 1 - tap : width - 1 - tap + length] * weight[:, tap : tap + 1] for tap in range(width)
        )
        return grad_x, grad_weight if str(x.dtype).endswith("64") else grad_weight.flip(-1)


class RightRMSNorm9(Function):
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


class RightLogSumExp10(Function):
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
