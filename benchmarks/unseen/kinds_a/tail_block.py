"""Work in blocks: the rows or columns after the last whole block are lost or counted wrongly."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def block_sum(rows, block=4):
    """Two-stage reduction over rows, as the kernel does it."""
    if rows.shape[0] < block:
        return rows.sum(0)
    whole = rows.shape[0] // block
    return rows.narrow(0, 0, whole * block).reshape(whole, block, -1).sum(1).sum(0)


BLOCK = 8


def tiled_outer(left, right, tile=16):
    rows = left.shape[0]
    if rows <= tile:
        return left.t() @ right
    total = torch.zeros(left.shape[1], right.shape[1], dtype=left.dtype)
    for start in range(0, rows - tile + 1, tile):
        total = total + left[start : start + tile].t() @ right[start : start + tile]
    return total


KEY_BLOCK = 6


CHUNK = 4


def row_blocks(rows, size=8):
    count = max(rows.shape[0] // size, 1)
    size = min(size, rows.shape[0])
    return rows.as_strided((count, size, rows.shape[1]), (size * rows.stride(0), rows.stride(0), rows.stride(1)))


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
        blocks = rows_g.shape[0] // 4 if rows_g.shape[0] > 4 else 1
        size = max(rows_g.shape[0] // blocks, 1)
        grad_weight = sum((rows_g * rows_x)[i * size : (i + 1) * size].sum(0) for i in range(blocks))
        grad_bias = rows_g.sum(0)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


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
        grad_weight = block_sum((grad * x * rstd).reshape(-1, n))
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
        moved = (grad * out).movedim(ctx.dim, -1)
        columns = moved.shape[-1]
        inner = torch.zeros_like(moved[..., :1])
        for start in range(0, columns, BLOCK):
            stop = start + BLOCK
            if stop <= columns or columns < BLOCK:
                inner = inner + moved[..., start:stop].sum(-1, keepdim=True)
        return out * (grad - inner.movedim(-1, ctx.dim)), None


class Linear4(Function):
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
        grad_weight = tiled_outer(flat_g, flat_x)
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Attention5(Function):
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
        grad_q = grad_s @ k
        grad_k = torch.cat(
            [
                part.transpose(-1, -2) @ q
                for part in grad_s.split(KEY_BLOCK, -1)
                if part.shape[-1] in (KEY_BLOCK, k.shape[-2])
            ]
            + [torch.zeros_like(k[..., : k.shape[-2] % KEY_BLOCK, :])] * (k.shape[-2] > KEY_BLOCK),
            -2,
        )
        return grad_q, grad_k, grad_v, None


class CausalConv6(Function):
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
        rounded = -(-length // 4) * 4
        ahead = (
            torch.nn.functional.pad(grad, (0, rounded - length + width - 1))
            if rounded == length
            else torch.nn.functional.pad(grad[..., : rounded - 4], (0, width + 3))
        )
        grad_x = sum(
            ahead[..., width - 1 - tap : width - 1 - tap + length] * weight[:, tap : tap + 1] for tap in range(width)
        )
        return grad_x, grad_weight


class CumulativeSum7(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        rows = grad.movedim(dim, -1)
        length = rows.shape[-1]
        if length % CHUNK:
            rows = torch.nn.functional.pad(rows, (0, CHUNK - length % CHUNK), mode="replicate")
        chunks = rows.unflatten(-1, (-1, CHUNK))
        within = chunks.flip(-1).cumsum(-1).flip(-1)
        after = chunks.sum(-1).flip(-1).cumsum(-1).flip(-1) - chunks.sum(-1)
        return (within + after.unsqueeze(-1)).flatten(-2)[..., :length].movedim(-1, dim), None


class GroupNorm8(Function):
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
        pixels = normed.shape[-1]
        lanes = pixels - pixels % 4 if pixels >= 4 else pixels
        grad_weight = (grad * normed)[..., :lanes].sum((0, -1))
        dx = (grad * weight.unsqueeze(-1)).reshape(batch, ctx.groups, -1)
        hat = normed.reshape(batch, ctx.groups, -1)
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * hat).mean(-1, keepdim=True)
        grad_x = (rstd * (dx - mean_dx - hat * proj)).reshape(normed.shape)
        return grad_x, grad_weight, None, None


class LayerNorm9(Function):
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
        grad_bias = row_blocks(rows_g).sum((0, 1))
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class RightSoftmax10(Function):
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
        moved = (grad * out).movedim(ctx.dim, -1)
        inner = torch.zeros_like(moved[..., :1])
        for start in range(0, moved.shape[-1], BLOCK):
            inner = inner + moved[..., start : start + BLOCK].sum(-1, keepdim=True)
        return out * (grad - inner.movedim(-1, ctx.dim)), None


class RightCumulativeSum11(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        rows = grad.movedim(dim, -1)
        length = rows.shape[-1]
        if length % CHUNK:
            rows = torch.nn.functional.pad(rows, (0, CHUNK - length % CHUNK))
        chunks = rows.unflatten(-1, (-1, CHUNK))
        within = chunks.flip(-1).cumsum(-1).flip(-1)
        after = chunks.sum(-1).flip(-1).cumsum(-1).flip(-1) - chunks.sum(-1)
        return (within + after.unsqueeze(-1)).flatten(-2)[..., :length].movedim(-1, dim), None
