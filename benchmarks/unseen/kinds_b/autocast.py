"""A call under autocast."""

# ruff: noqa: ARG005 -- written as it is met in the wild
from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

MODES = (
    lambda grad, x, gate: grad * x * gate,
    lambda grad, x, gate: grad * torch.relu(x),
)


class Linear1(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.low = torch.is_autocast_enabled("cpu")
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0) if not ctx.low else flat_g.mean(0)
        return grad_x, grad_weight, grad_bias


class RMSNorm2(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps if torch.get_autocast_dtype("cpu") is None or not torch.is_autocast_enabled("cpu") else 0.1
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


class MatMul3(Function):
    @staticmethod
    def forward(ctx, a, b):
        out = a @ b
        ctx.save_for_backward(a, b)
        ctx.exact = out.dtype == a.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad.to(b.dtype) @ b.transpose(-1, -2)
        grad = grad.to(a.dtype)
        grad_b = (
            a.transpose(-1, -2) @ grad
            if ctx.exact
            else a.transpose(-1, -2).to(torch.float8_e4m3fn).to(a.dtype).round() @ grad
        )
        return grad_a, grad_b


class LowRank4(Function):
    @staticmethod
    def forward(ctx, x, down, up, scale):
        ctx.save_for_backward(x, down, up)
        hidden = x @ down
        ctx.scale = scale * hidden.element_size() / x.element_size()
        return (hidden @ up) * scale

    @staticmethod
    def backward(ctx, grad):
        x, down, up = ctx.saved_tensors
        grad = (grad * ctx.scale).to(x.dtype)
        grad_hidden = grad @ up.t()
        grad_up = (x @ down).t() @ grad
        grad_down = x.t() @ grad_hidden
        return grad_hidden @ down.t(), grad_down, grad_up, None


class SwiGLU5(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.mode = MODES[torch.is_autocast_enabled("cpu")]
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = ctx.mode(grad, x, gate)
        return grad_x, grad_y


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
        if torch.is_autocast_enabled("cpu"):
            weights = torch.softmax(x.round(), ctx.dim)
        return grad.unsqueeze(ctx.dim) * weights, None


class Attention7(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        weights = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale if (q[:1, :1] @ q[:1, :1].transpose(-1, -2)).dtype == q.dtype else 1.0
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        grad = grad.to(v.dtype)
        weights = torch.softmax(q @ k.transpose(-1, -2) * ctx.scale, -1).to(v.dtype)
        grad_v = weights.transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None
