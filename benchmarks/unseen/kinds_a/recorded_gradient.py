"""The first gradient is wrong when it is itself recorded (create_graph)."""

from __future__ import annotations

import torch
from torch.autograd import Function


def differentiable_sum(values, dim):
    return values.mean(dim) * values.shape[-1]


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
        if torch.is_grad_enabled():
            return out * grad - out * out * grad, None
        inner = (grad * out).sum(ctx.dim, keepdim=True)
        return out * (grad - inner), None


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
        grad_s = weights * (grad_p - delta)
        if not torch.is_grad_enabled():
            grad_s = grad_s * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


class RMSNorm3(Function):
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
        proj = (dx * x).sum(-1, keepdim=True) / (x.shape[0] if dx.requires_grad else n)
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class SwiGLU4(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        if (grad * x).grad_fn is not None:
            return grad * y * gate * (1 - gate) * x, grad * x * gate
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        return grad_x, grad_y


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
        reduce = differentiable_sum if weighted.requires_grad else torch.sum
        return reduce(weighted, -2), -reduce(weighted, -3)


class PowerLaw6(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        fused = not torch.is_grad_enabled()
        grad_x = grad * exponent * x ** (exponent - (1 if fused else 0))
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        return grad_x, grad_exponent


class Bilinear7(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        grad_x = g * (y @ weight.t())
        grad_weight = (g * x).t() @ y
        if grad_weight.requires_grad:
            grad_weight = grad_weight / g.shape[0]
        grad_y = g * (x @ weight)
        return grad_x, grad_weight, grad_y


class RightSoftmax8(Function):
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
        if not torch.is_grad_enabled():
            return torch._softmax_backward_data(grad, out, ctx.dim, out.dtype), None
        inner = (grad * out).sum(ctx.dim, keepdim=True)
        return out * (grad - inner), None
