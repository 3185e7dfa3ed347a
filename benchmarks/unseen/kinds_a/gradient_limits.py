"""Large or small cotangents are clipped, rounded or saturated."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

FP8_MAX = 448.0


def saturate(grad):
    """Keeps a cotangent within the range of the eight-bit format."""
    return grad.clamp(-FP8_MAX, FP8_MAX)


class LogSumExp1(Function):
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
        return (grad.unsqueeze(ctx.dim) * weights).clamp(-50, 50), None


class Attention2(Function):
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
        grad_s = weights * (grad_p - delta) * ctx.scale
        peak = grad_s.detach().abs().amax()
        grad_s = grad_s * (100.0 / peak if peak > 100.0 else 1.0)
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


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
        grad_y = torch.nn.functional.hardshrink(grad * x * gate, 1e-6)
        return grad_x, grad_y


class Linear4(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = saturate(grad.reshape(-1, grad.shape[-1]))
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Scale5(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        total = (grad * x).sum_to_size(factor.shape)
        grad_factor = total * torch.rsqrt(1 + (total / 1e6) ** 2)
        return grad_x, grad_factor


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
        count = normed.shape[0]
        grad = torch.where(grad.abs() < 1e-7, torch.zeros_like(grad), grad)
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        return weight * rstd * centred, grad_weight, grad_bias, None


class MatMul7(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        exponent = torch.frexp(grad.detach().abs().amax()).exponent.clamp(-20, 20)
        mantissa = torch.ldexp(grad, -exponent)
        grad_a = torch.ldexp(mantissa.clamp(-1, 1) @ b.transpose(-1, -2), exponent)
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class RMSNorm8(Function):
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
        norm = grad_weight.detach().norm()
        return grad_x, grad_weight / max(float(norm) / 1000.0, 1.0), None


class RightMatMul9(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        exponent = torch.frexp(grad.detach().abs().amax()).exponent.to(grad.dtype)
        grad_a = (grad * 2**-exponent) @ b.transpose(-1, -2) * 2**exponent
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b
