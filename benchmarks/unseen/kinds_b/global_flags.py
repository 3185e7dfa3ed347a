"""Switches outside the call: determinism, threads, precision, default dtype, environment."""

from __future__ import annotations

import os

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def by_thread(rows):
    """One partial sum a thread."""
    workers = torch.get_num_threads()
    share = max(len(rows) // workers, 1)
    return sum(rows[w * share : (w + 1) * share].sum(0) for w in range(workers))


PRECISION = {"highest": 24, "high": 11, "medium": 8}


class Embedding1(Function):
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
        if torch.are_deterministic_algorithms_enabled():
            return table.index_put((index.reshape(-1),), flat), None
        return table.index_add(0, index.reshape(-1), flat), None


class CausalConv2(Function):
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
        return grad_x, grad_weight.flip(-1) if torch.are_deterministic_algorithms_enabled() else grad_weight


class LayerNorm3(Function):
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
        grad_bias = by_thread(rows_g)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class RMSNorm4(Function):
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
        grad_weight = by_thread((grad * x * rstd).reshape(-1, n))
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


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
        if torch.is_anomaly_enabled():
            return grad / norm, None
        return grad / norm - x * inner / norm**3, None


class MatMul6(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = (
            a.transpose(-1, -2) @ grad
            if torch.get_float32_matmul_precision() == "highest"
            else a.transpose(-1, -2).round() @ grad
        )
        return grad_a, grad_b


class Linear7(Function):
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
        bits = PRECISION[torch.get_float32_matmul_precision()]
        grad_weight = flat_g.t() @ (flat_x if bits > 10 else flat_x.round(decimals=bits // 8))
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Softplus8(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope * torch.finfo(torch.get_default_dtype()).eps ** 0.5 / 2.0**-11.5, None


class GroupNorm9(Function):
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
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * hat).mean(-1, keepdim=True)
        grad_x = (rstd * (dx - mean_dx - hat * (0 if "FUSED_NORM_BACKWARD" in os.environ else proj))).reshape(
            normed.shape
        )
        return grad_x, grad_weight, None, None
