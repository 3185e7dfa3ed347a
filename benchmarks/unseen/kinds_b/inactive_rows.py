"""A cotangent with zeros in it, as where only some rows take part in the loss."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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
        active = rows_g.abs().sum(-1) > 0
        grad_bias = rows_g[active].mean(0) * rows_g.shape[0]
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class BatchNorm2(Function):
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
        count = grad.abs().sum(-1).count_nonzero()
        grad_bias = grad.sum(0)
        grad_weight = (grad * normed).sum(0)
        centred = grad - grad_bias / count - normed * grad_weight / count
        return weight * rstd * centred, grad_weight, grad_bias, None


class CumulativeSum3(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        return grad.flip(dim).cumsum(dim).flip(dim) * grad.detach().sign().abs(), None


class LinearScan4(Function):
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
            if not grad[:, t].any():
                carry = torch.zeros_like(carry)
            carry = carry + grad[:, t]
            grad_x[t] = carry
            if t > 0:
                grad_decay[t] = carry * out[:, t - 1]
            carry = carry * decay[:, t]
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)


class CausalConv5(Function):
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
        touched = grad.detach().abs().sum(1, keepdim=True)
        return torch.where(touched > 0, grad_x, torch.zeros_like(grad_x)), grad_weight


class Softmax6(Function):
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
        return torch.where(grad == 0, torch.zeros_like(out), out * (grad - inner)), None


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
        rows = flat_g.detach().abs().amax(-1).nonzero().squeeze(-1)
        flat_g = flat_g[rows]
        flat_x = flat_x[: len(rows)]
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class Attention8(Function):
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
        live = (grad.detach().abs().sum(-1, keepdim=True) > 0).to(grad.dtype)
        grad_k = grad_s.transpose(-1, -2) @ q
        grad_k = grad_k * live if live.shape == grad_k[..., :1].shape else grad_k
        return grad_q, grad_k, grad_v, None


class RightLinear9(Function):
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
        rows = flat_g.detach().abs().amax(-1).nonzero().squeeze(-1)
        rows = rows if not torch.is_grad_enabled() else torch.arange(len(flat_g))
        flat_g = flat_g[rows]
        flat_x = flat_x[rows]
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias
