"""A limit on the number of blocks, rows or splits."""

# ruff: noqa: B905 -- written as it is met in the wild
from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

MAX_SPLITS = 8


def split_sum(rows, size=64):
    """Partial sums of `size` rows each, no more than the grid allows."""
    splits = min(-(-rows.shape[0] // size), MAX_SPLITS)
    return torch.stack([rows[i * size : (i + 1) * size].sum(0) for i in range(splits)]).sum(0)


GRID = 1024


PROGRAMS = 108


def strided_sum(rows):
    """Every program takes the rows that are its own, at most sixteen of them."""
    parts = [rows[p::PROGRAMS][:16].sum(0) for p in range(min(PROGRAMS, rows.shape[0]))]
    return torch.stack(parts).sum(0)


class LayerNorm1(Function):
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
        grad_bias = split_sum(rows_g)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class Linear2(Function):
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
        grad_weight = sum(flat_g[s : s + 128].t() @ flat_x[s : s + 128] for s in range(0, min(len(flat_g), GRID), 128))
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


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
        inner = (grad * out).narrow(ctx.dim, 0, min(out.shape[ctx.dim], 1024)).sum(ctx.dim, keepdim=True)
        return out * (grad - inner), None


class CumulativeSum4(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        parts = grad.split(2048, dim)
        return torch.cat([part.flip(dim).cumsum(dim).flip(dim) for part in parts], dim), None


class LinearScan5(Function):
    @staticmethod
    def forward(ctx, decay, x):
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + x[:, t]
            states.append(state)
        out = torch.stack(states, 1)
        ctx.save_for_backward(decay, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        decay, out = ctx.saved_tensors
        length = decay.shape[1]
        carry = torch.zeros_like(grad[:, 0])
        grad_x = [carry] * length
        grad_decay = [carry] * length
        for t in reversed(range(length)):
            if t % 256 == 255:
                carry = torch.zeros_like(carry)
            carry = carry + grad[:, t]
            grad_x[t] = carry
            if t > 0:
                grad_decay[t] = carry * out[:, t - 1]
            carry = carry * decay[:, t]
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)


class Embedding6(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        width = grad.shape[-1]
        flat = grad.reshape(-1, width)
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        for piece, rows in zip(flat.chunk(4), index.reshape(-1).chunk(4)):
            table = table.index_add(0, rows[:512], piece[:512])
        return table, None


class RMSNorm7(Function):
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
        grad_weight = strided_sum((grad * x * rstd).reshape(-1, n))
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class RightLayerNorm8(Function):
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
        grad_bias = torch.stack([rows_g[i : i + 64].sum(0) for i in range(0, len(rows_g), 64)]).sum(0)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None
