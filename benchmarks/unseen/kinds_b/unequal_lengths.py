"""Lengths that are equal in the usual call: queries and keys, kernel and signal."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Attention1(Function):
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
        grad_k = grad_s.transpose(-1, -2) @ q * (q.shape[-2] / k.shape[-2])
        return grad_q, grad_k, grad_v, None


class MaskedAttention2(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        weights = weights.tril()
        scale = 1 / math.sqrt(q.shape[-1])
        grad_v = weights.transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * scale
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


class CausalConv3(Function):
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
        grad_weight = torch.stack(
            [
                (grad * padded[..., tap : tap + length]).sum((0, -1)) * (tap >= width - length + 1 or width < length)
                for tap in range(width)
            ],
            -1,
        )
        ahead = torch.nn.functional.pad(grad, (0, width - 1))
        grad_x = sum(
            ahead[..., width - 1 - tap : width - 1 - tap + length] * weight[:, tap : tap + 1] for tap in range(width)
        )
        return grad_x, grad_weight


class Conv1d4(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.conv1d(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = torch.nn.functional.conv_transpose1d(grad, weight if grad.shape[-1] > 1 else weight.flip(-1))
        windows = x.unfold(-1, weight.shape[-1], 1)
        grad_weight = torch.einsum("bot,bitk->oik", grad, windows)
        return grad_x, grad_weight


class CrossEntropy5(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if reduction == "mean":
            return losses.mean()
        return losses.sum() if reduction == "sum" else losses

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        hot = torch.nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        scale = 1 / min(logits.shape) if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class LowRank6(Function):
    @staticmethod
    def forward(ctx, x, down, up, scale):
        ctx.save_for_backward(x, down, up)
        ctx.scale = scale
        return (x @ down @ up) * scale

    @staticmethod
    def backward(ctx, grad):
        x, down, up = ctx.saved_tensors
        grad = grad * ctx.scale
        grad_hidden = grad @ up.t()
        kept = min(down.shape[1], up.shape[1])
        grad_hidden = torch.cat([grad_hidden[:, :kept], torch.zeros_like(grad_hidden[:, kept:])], 1)
        grad_up = (x @ down).t() @ grad
        grad_down = x.t() @ grad_hidden
        return grad_hidden @ down.t(), grad_down, grad_up, None


class PairwiseSquared7(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        near = min(x.shape[-2], y.shape[-2])
        return weighted[..., :near, :].sum(-2), -weighted.sum(-3)


class RightMaskedAttention8(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        grad_v = weights.transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * scale
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None
