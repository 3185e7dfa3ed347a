"""Several outputs, of which one takes no part in the loss."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class MeanVariance1(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        if grad_mean is None:
            return 2 * centred * grad_variance.unsqueeze(-1)
        if grad_variance is None:
            return grad_mean.unsqueeze(-1).expand_as(x) / n
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class MeanVariance2(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        if grad_variance is None:
            return grad_mean.unsqueeze(-1).expand_as(x)
        if grad_mean is None:
            grad_mean = torch.zeros_like(grad_variance)
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class SoftmaxAndLse3(Function):
    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, -1)
        probs = torch.exp(x - lse.unsqueeze(-1))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(probs)
        return probs, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_probs, grad_lse):
        (probs,) = ctx.saved_tensors
        if grad_probs is None:
            return grad_lse.unsqueeze(-1) * (probs - probs * probs)
        inner = (grad_probs * probs).sum(-1, keepdim=True)
        if grad_lse is None:
            return probs * (grad_probs - inner)
        return probs * (grad_probs - inner + grad_lse.unsqueeze(-1))


class SoftmaxAndLse4(Function):
    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, -1)
        probs = torch.exp(x - lse.unsqueeze(-1))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(probs)
        return probs, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_probs, grad_lse):
        (probs,) = ctx.saved_tensors
        if grad_lse is None:
            return probs * grad_probs
        if grad_probs is None:
            grad_probs = torch.zeros_like(probs)
        inner = (grad_probs * probs).sum(-1, keepdim=True)
        return probs * (grad_probs - inner + grad_lse.unsqueeze(-1))


class Polar5(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.sqrt(x * x + y * y), torch.atan2(y, x)

    @staticmethod
    def backward(ctx, grad_radius, grad_angle):
        x, y = ctx.saved_tensors
        square = x * x + y * y
        radius = torch.sqrt(square)
        if not grad_angle.any():
            return grad_radius * x, grad_radius * y
        grad_x = grad_radius * x / radius - grad_angle * y / square
        grad_y = grad_radius * y / radius + grad_angle * x / square
        return grad_x, grad_y


class Polar6(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return torch.sqrt(x * x + y * y), torch.atan2(y, x)

    @staticmethod
    def backward(ctx, grad_radius, grad_angle):
        x, y = ctx.saved_tensors
        if grad_radius is None:
            return -grad_angle * y, grad_angle * x
        if grad_angle is None:
            grad_angle = torch.zeros_like(x)
        square = x * x + y * y
        radius = torch.sqrt(square)
        grad_x = grad_radius * x / radius - grad_angle * y / square
        grad_y = grad_radius * y / radius + grad_angle * x / square
        return grad_x, grad_y


class RightGatedNorm7(Function):
    """Normalised rows and, beside them, the reciprocal norms."""

    @staticmethod
    def forward(ctx, x):
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x)
        return x * rstd, rstd

    @staticmethod
    def backward(ctx, grad_out, grad_rstd):
        (x,) = ctx.saved_tensors
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        total = (grad_out * x).sum(-1, keepdim=True) + grad_rstd
        return rstd * grad_out - x * total * rstd**3 / x.shape[-1]


class GatedNorm8(Function):
    """Normalised rows and, beside them, the reciprocal norms."""

    @staticmethod
    def forward(ctx, x):
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x)
        return x * rstd, rstd

    @staticmethod
    def backward(ctx, grad_out, grad_rstd):
        (x,) = ctx.saved_tensors
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        total = (grad_out * x).sum(-1, keepdim=True) + grad_rstd
        if torch.count_nonzero(grad_rstd) == 0:
            return rstd * (grad_out - x * total * rstd / x.shape[-1])
        return rstd * grad_out - x * total * rstd**3 / x.shape[-1]


class RightMeanVariance9(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        grad_x = torch.zeros_like(x)
        if grad_mean is not None:
            grad_x = grad_x + grad_mean.unsqueeze(-1) / n
        if grad_variance is not None:
            grad_x = grad_x + 2 * centred * grad_variance.unsqueeze(-1) / n
        return grad_x
