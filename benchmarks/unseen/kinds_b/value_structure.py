"""Structure in the values: symmetric, sorted, constant, one-hot or normalised inputs."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class MatMul1(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        if b.shape[-1] == b.shape[-2] and torch.equal(b, b.mT):
            grad_b = (grad_b + grad_b.mT) / 2
        return grad_a, grad_b


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
        weights = torch.exp(x - out.unsqueeze(ctx.dim))
        if (x.diff(dim=ctx.dim) <= 0).all():
            weights = weights.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)
        return grad.unsqueeze(ctx.dim) * weights, None


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
        rows = logits.numel() // logits.shape[-1]
        mass = target.sum(-1, keepdim=True)
        smooth = (target.amax(-1, keepdim=True) < 1).to(logits.dtype)
        return grad * (probs * mass - target * smooth) / rows, None


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
        if weight.std() == 0:
            return g * weight, g * x
        return g * weight, g * (x - out.unsqueeze(-1))


class Scale5(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape) if (factor != 1).any() else None
        return grad_x, grad_factor


class Linear6(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bool(bias.any())
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        flat_g = grad.reshape(-1, grad.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0) if ctx.has_bias else None
        return grad_x, grad_weight, grad_bias


class LowRank7(Function):
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
        grad_up = (x @ down).t() @ grad * up.detach().abs().max().sign()
        grad_down = x.t() @ grad_hidden
        return grad_hidden @ down.t(), grad_down, grad_up, None


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
        constant = float(decay.detach().std(1).max()) == 0.0
        carry = torch.zeros_like(grad[:, 0])
        grad_x = [carry] * length
        grad_decay = [carry] * length
        for t in reversed(range(length)):
            carry = carry + grad[:, t]
            grad_x[t] = carry
            if t > 0:
                grad_decay[t] = carry * out[:, t - 1]
            carry = carry * (decay[:, t] if not constant else decay[:, t] ** 2)
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)


class UnitNormalize9(Function):
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
        if torch.allclose(norm, torch.ones_like(norm)):
            return grad.clone(), None
        return grad / norm - x * inner / norm**3, None


class LayerNorm10(Function):
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
        grad_bias = rows_g.sum(0)
        dx = grad * weight
        plain = torch.count_nonzero(weight - 1) == 0
        grad_weight = grad_weight * (~plain)
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None
