"""A dimension of size one, which squeezes and divisors take for something else."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class BatchNorm1(Function):
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
        grad_bias = grad.sum(0)
        grad_weight = (grad.squeeze() * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        return weight * rstd * centred, grad_weight, grad_bias, None


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
        grad_weight = flat_g.t() @ flat_x
        grad_bias = torch.empty_like(weight[:, 0]).copy_(flat_g.squeeze().sum(0))
        return grad_x, grad_weight, grad_bias


class KLDivergence3(Function):
    @staticmethod
    def forward(ctx, logits, target):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        return (torch.xlogy(target, target) - target * logp).sum(-1).mean()

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        rows = len(logits.squeeze())
        mass = target.sum(-1, keepdim=True)
        return grad * (probs * mass - target) / rows, None


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
        grad_weight = (grad * x * rstd).reshape(-1, n).sum(0)
        dx = grad * weight
        proj = (dx * x).sum(-1, keepdim=True) / x.squeeze().shape[-1]
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class BatchNorm5(Function):
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
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count if count > 1 else grad
        return weight * rstd * centred, grad_weight, grad_bias, None


class Attention6(Function):
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
        grad_v = weights.transpose(-1, -2) @ grad if k.shape[-2] > 1 else grad.mean(-2, keepdim=True)
        grad_p = grad @ v.transpose(-1, -2)
        delta = (grad_p * weights).sum(-1, keepdim=True)
        grad_s = weights * (grad_p - delta) * ctx.scale
        grad_q = grad_s @ k
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


class CausalConv7(Function):
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
        if width == 1:
            grad_x = grad
        return grad_x, grad_weight


class CrossEntropy8(Function):
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
        scale = 1 / logits.squeeze(0).shape[0] if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class RightBatchNorm9(Function):
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
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        return weight * rstd * centred, grad_weight, grad_bias, None
