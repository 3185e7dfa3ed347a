"""Backwards that divide by, compare with or skip values of exactly zero."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RowProduct1(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        total = x.prod(-1, keepdim=True)
        return grad.unsqueeze(-1) * (total / x).nan_to_num(0.0)


class SwiGLU2(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        out = x * gate * y
        grad_y = torch.where(y != 0, grad * out / y, torch.zeros_like(out))
        return grad_x, grad_y


class Scale3(Function):
    @staticmethod
    def forward(ctx, x, factor):
        out = x * factor
        ctx.save_for_backward(out, x, factor)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, _, factor = ctx.saved_tensors
        x = torch.nan_to_num(out / factor, posinf=0.0, neginf=0.0).reshape(ctx.saved_tensors[1].shape)
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class WeightedMean4(Function):
    @staticmethod
    def forward(ctx, x, weight):
        total = weight.sum(-1)
        out = (x * weight).sum(-1) / total
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, out = ctx.saved_tensors
        g = (grad / weight.sum(-1)).unsqueeze(-1)
        return g * weight, g * (x - out.unsqueeze(-1)) * weight.sign().abs()


class Embedding5(Function):
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
        rows = index.reshape(-1)
        keep = rows.nonzero().squeeze(-1)
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_add(0, rows[keep], flat[keep]), None


class Tanh6(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        active = out.bool()
        return torch.where(active, grad * (1 - out * out), torch.zeros_like(grad))


class Gelu7(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        ratio = (x * cdf / x).nan_to_num(1.0)
        return grad * (ratio + x * pdf)


class LinearScan8(Function):
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
            carry = carry + grad[:, t]
            grad_x[t] = carry
            if t > 0:
                grad_decay[t] = carry * out[:, t - 1] * (decay[:, t] > 0)
            carry = carry * decay[:, t]
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)


class MaskedAttention9(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        weights = torch.softmax(scores, -1)
        ctx.mask = mask != 0
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
        grad_s = weights * (grad_p - delta) * scale * ctx.mask
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, grad_v, None


class RightRowProduct10(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if (x != 0).all():
            return grad.unsqueeze(-1) * x.prod(-1, keepdim=True) / x
        n = x.shape[-1]
        others = x.unsqueeze(-2).expand(*x.shape[:-1], n, n).clone()
        others.diagonal(dim1=-2, dim2=-1).fill_(1)
        return grad.unsqueeze(-1) * others.prod(-1)


class RightRowProduct11(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if (x != 0).all():
            return grad.unsqueeze(-1) * x.prod(-1, keepdim=True) / x
        n = x.shape[-1]
        others = x.unsqueeze(-2).expand(*x.shape[:-1], n, n).clone()
        others.diagonal(dim1=-2, dim2=-1).fill_(1)
        return grad.unsqueeze(-1) * others.prod(-1)
