"""A gradient handed out from scratch memory that the next backward overwrites."""

from __future__ import annotations

import itertools

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_SCRATCH = {}


def scratch(like):
    """Memory of this shape, allocated once."""
    key = (tuple(like.shape), like.dtype)
    if key not in _SCRATCH:
        _SCRATCH[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
    return _SCRATCH[key]


_SMALL = torch.zeros(1024, dtype=torch.float64)


_TURN = itertools.count()
_SLOTS = ({}, {}, {}, {})


_WEIGHT_GRADS = {}


ROOM = {}


class Tanh1(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return torch.mul(grad, 1 - out * out, out=scratch(grad))


class Linear2(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = torch.mm(flat_g.t(), flat_x, out=scratch(weight))
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class LogSoftmax3(Function):
    @staticmethod
    def forward(ctx, x):
        shifted = x - x.amax(-1, keepdim=True)
        out = shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        total = grad.sum(-1, keepdim=True)
        if grad.numel() <= _SMALL.numel():
            room = _SMALL[: grad.numel()].view(grad.shape)
            return room.copy_(grad - torch.exp(out) * total)
        return grad - torch.exp(out) * total


class CumulativeSum4(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        dim = ctx.dim
        slot = _SLOTS[next(_TURN) % len(_SLOTS)].setdefault(grad.shape, torch.zeros_like(grad))
        return slot.copy_(grad.flip(dim).cumsum(dim).flip(dim)), None


class RMSNorm5(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        n = x.shape[-1]
        rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) / n + ctx.eps)
        grad_weight = (grad * x * rstd).reshape(-1, n).sum(0)
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, _WEIGHT_GRADS.setdefault(weight.numel(), torch.zeros_like(grad_weight)).copy_(grad_weight), None


class LayerNorm6(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)
        normed = (x - mean) * rstd
        ctx.save_for_backward(normed, rstd, weight)
        ctx.room = ROOM.setdefault(x.shape, torch.empty_like(x))
        return normed * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, rstd, weight = ctx.saved_tensors
        n = normed.shape[-1]
        rows_g = grad.reshape(-1, n)
        rows_x = normed.reshape(-1, n)
        grad_weight = (rows_g * rows_x).sum(0)
        grad_bias = rows_g.sum(0)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return ctx.room.copy_(grad_x), grad_weight, grad_bias, None
