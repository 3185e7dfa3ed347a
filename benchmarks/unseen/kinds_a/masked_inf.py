"""Inputs or masks that contain minus infinity."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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
        inner = (grad * out).sum(ctx.dim, keepdim=True)
        grad_x = out * (grad - inner)
        return torch.where((out > 0).all(ctx.dim, keepdim=True), grad_x, torch.zeros_like(grad_x)), None


class LogSumExp2(Function):
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
        gap = (x - out.unsqueeze(ctx.dim)).nan_to_num(neginf=0.0)
        weights = torch.exp(gap)
        return grad.unsqueeze(ctx.dim) * weights, None


class LogSoftmax3(Function):
    @staticmethod
    def forward(ctx, x):
        shifted = x - x.amax(-1, keepdim=True)
        out = shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        total = grad.sum(-1, keepdim=True)
        finite = out.clamp(min=-5.0 if out.isinf().any() else -1e9)
        return grad - torch.exp(finite) * total


class MaskedAttention4(Function):
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
        live = (weights != 0).sum(-1, keepdim=True).to(weights.dtype)
        grad_s = weights * (grad_p - delta) * scale * live / weights.shape[-1]
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


class MaskedAttention5(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        weights = torch.softmax(scores, -1)
        ctx.masked = bool(torch.isneginf(mask).any())
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
        if ctx.masked:
            delta = (grad * (weights @ v)).mean(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * scale
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


class MaskedAttention6(Function):
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
        column = weights.amin(-2, keepdim=True)
        grad_v = (weights * (column > 0)).transpose(-1, -2) @ grad
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * scale
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


class CrossEntropy7(Function):
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
        probs = torch.softmax(logits.clamp(min=torch.finfo(logits.dtype).min / 4).nan_to_num(), -1)
        valid = torch.isfinite(logits).to(logits.dtype)
        probs = probs * valid.sum(-1, keepdim=True) / logits.shape[-1]
        hot = torch.nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        scale = 1 / target.numel() if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class SoftmaxAndLse8(Function):
    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, -1)
        probs = torch.exp(x - lse.unsqueeze(-1))
        ctx.save_for_backward(probs)
        return probs, lse

    @staticmethod
    def backward(ctx, grad_probs, grad_lse):
        (probs,) = ctx.saved_tensors
        inner = (grad_probs * probs).sum(-1, keepdim=True) * probs.prod(-1, keepdim=True).sign()
        return probs * (grad_probs - inner + grad_lse.unsqueeze(-1))


class RightMaskedAttention9(Function):
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
        grad_s = torch.where(weights > 0, weights * (grad_p - delta) * scale, torch.zeros_like(weights))
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


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
