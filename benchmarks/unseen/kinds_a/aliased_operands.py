"""The same tensor in two places of one call."""

from __future__ import annotations

import torch
from torch.autograd import Function


class MatMul1(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        if a.data_ptr() == b.data_ptr():
            return grad_a, torch.zeros_like(b)
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Attention2(Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        weights = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.tied = k is v
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
        grad_k = grad_s.transpose(-1, -2) @ q
        if ctx.tied:
            grad_k = grad_k + grad_v
        return grad_q, grad_k, grad_v, None


class SwiGLU3(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        if torch.equal(x, y):
            grad_x = grad * x * gate * (2 + x * (1 - gate))
        return grad_x, grad_y


class PairwiseSquared4(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        grad_x = weighted.sum(-2)
        return grad_x, grad_x if x.shape == y.shape and (
            difference.diagonal(dim1=-3, dim2=-2) == 0
        ).all() else -weighted.sum(-3)


class SwiGLU5(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.slots = {id(t): n for n, t in enumerate((x, y))}
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        grads = [grad_x, grad_y]
        return (*(grads[n] for n in sorted(ctx.slots.values())), *([None] * (2 - len(ctx.slots))))


class Scale6(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.square = factor is x
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape) if not ctx.square else 2 * grad * x
        return grad_x, grad_factor


class Bilinear7(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.saved = {tensor.data_ptr(): slot for slot, tensor in enumerate((weight, x, y))}
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        grad_x = g * (y @ weight.t())
        grad_weight = (g * x).t() @ y
        grad_y = g * (x @ weight)
        grads = {1: grad_x, 2: grad_y, 0: grad_weight}
        return grads[ctx.saved[x.data_ptr()]], grad_weight, grads[ctx.saved[y.data_ptr()]]


class WeightedMean8(Function):
    @staticmethod
    def forward(ctx, x, weight):
        total = weight.sum(-1)
        out = (x * weight).sum(-1) / total
        same = x.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
        ctx.save_for_backward(x, torch.ones_like(weight) if same else weight, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, out = ctx.saved_tensors
        g = (grad / weight.sum(-1)).unsqueeze(-1)
        return g * weight, g * (x - out.unsqueeze(-1))


class RightScale9(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.square = factor is x
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        if ctx.square:
            return 2 * grad * x, None
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor
