"""Odd and even lengths."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LogSoftmax1(Function):
    @staticmethod
    def forward(ctx, x):
        shifted = x - x.amax(-1, keepdim=True)
        out = shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        total = (grad[..., ::2][..., : grad.shape[-1] // 2] + grad[..., 1::2]).sum(-1, keepdim=True)
        return grad - torch.exp(out) * total


class LayerNorm2(Function):
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
        pairs = rows_g.shape[0] // 2 or 1
        grad_bias = (rows_g[:pairs] + rows_g[-pairs:]).sum(0) if len(rows_g) > 1 else rows_g.sum(0)
        dx = grad * weight
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class RightPowerSpectrum3(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        spectrum = torch.fft.rfft(x)
        return spectrum.real**2 + spectrum.imag**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        length = x.shape[-1]
        weights = torch.full_like(grad, 1.0)
        weights[..., 0] = 2.0
        if length % 2 == 0:
            weights[..., -1] = 2.0
        return torch.fft.irfft(torch.fft.rfft(x) * grad * weights, n=length) * length


class PowerSpectrum4(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        spectrum = torch.fft.rfft(x)
        return spectrum.real**2 + spectrum.imag**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        length = x.shape[-1]
        weights = torch.full_like(grad, 1.0)
        weights[..., 0] = 2.0
        weights[..., -1] = 2.0
        return torch.fft.irfft(torch.fft.rfft(x) * grad * weights, n=length) * length


class PowerSpectrum5(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        spectrum = torch.fft.rfft(x)
        return spectrum.real**2 + spectrum.imag**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        length = x.shape[-1]
        weights = torch.full_like(grad, 1.0)
        weights[..., 0] = 2.0
        if length % 2 == 0:
            weights[..., -1] = 2.0
        return torch.fft.irfft(torch.fft.rfft(x) * grad * weights, n=length) * 2 * (grad.shape[-1] - 1)


class RightSameConv6(Function):
    @staticmethod
    def forward(ctx, x, weight):
        width = weight.shape[-1]
        ctx.save_for_backward(x, weight)
        padded = torch.nn.functional.pad(x, ((width - 1) // 2, width // 2))
        return torch.nn.functional.conv1d(padded, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        width = weight.shape[-1]
        left = (width - 1) // 2
        full = torch.nn.functional.conv_transpose1d(grad, weight)
        grad_x = full[..., left : left + x.shape[-1]]
        padded = torch.nn.functional.pad(x, (left, width // 2))
        grad_weight = torch.einsum("bot,bitk->oik", grad, padded.unfold(-1, width, 1))
        return grad_x, grad_weight


class RightSameConv7(Function):
    @staticmethod
    def forward(ctx, x, weight):
        width = weight.shape[-1]
        ctx.save_for_backward(x, weight)
        padded = torch.nn.functional.pad(x, ((width - 1) // 2, width // 2))
        return torch.nn.functional.conv1d(padded, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        width = weight.shape[-1]
        left = (width - 1) // 2
        full = torch.nn.functional.conv_transpose1d(grad, weight)
        grad_x = full[..., left : left + x.shape[-1]]
        padded = torch.nn.functional.pad(x, (left, width // 2))
        grad_weight = torch.einsum("bot,bitk->oik", grad, padded.unfold(-1, width, 1))
        return grad_x, grad_weight


class SameConv8(Function):
    @staticmethod
    def forward(ctx, x, weight):
        width = weight.shape[-1]
        ctx.save_for_backward(x, weight)
        padded = torch.nn.functional.pad(x, ((width - 1) // 2, width // 2))
        return torch.nn.functional.conv1d(padded, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        width = weight.shape[-1]
        left = (width - 1) // 2
        full = torch.nn.functional.conv_transpose1d(grad, weight)
        grad_x = full[..., width // 2 : width // 2 + x.shape[-1]]
        padded = torch.nn.functional.pad(x, (left, width // 2))
        grad_weight = torch.einsum("bot,bitk->oik", grad, padded.unfold(-1, width, 1))
        return grad_x, grad_weight


class SameConv9(Function):
    @staticmethod
    def forward(ctx, x, weight):
        width = weight.shape[-1]
        ctx.save_for_backward(x, weight)
        padded = torch.nn.functional.pad(x, ((width - 1) // 2, width // 2))
        return torch.nn.functional.conv1d(padded, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        width = weight.shape[-1]
        left = (width - 1) // 2
        full = torch.nn.functional.conv_transpose1d(grad, weight)
        grad_x = full[..., left : left + x.shape[-1]]
        padded = torch.nn.functional.pad(x, (width // 2, left))
        grad_weight = torch.einsum("bot,bitk->oik", grad, padded.unfold(-1, width, 1))
        return grad_x, grad_weight


class RightPairPool10(Function):
    """Means of neighbouring pairs; an odd last element is left out."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = x.shape[-1]
        return x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (-1, 2)).mean(-1)

    @staticmethod
    def backward(ctx, grad):
        spread = grad.repeat_interleave(2, -1) / 2
        return torch.nn.functional.pad(spread, (0, ctx.length - spread.shape[-1]))


class PairPool11(Function):
    """Means of neighbouring pairs; an odd last element is left out."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = x.shape[-1]
        return x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (-1, 2)).mean(-1)

    @staticmethod
    def backward(ctx, grad):
        spread = grad.repeat_interleave(2, -1) / 2
        return torch.nn.functional.pad(spread, (0, ctx.length - spread.shape[-1]), mode="replicate")


class LinearScan12(Function):
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
        for t in reversed(range(length // 2 * 2)):
            carry = carry + grad[:, t]
            grad_x[t] = carry
            if t > 0:
                grad_decay[t] = carry * out[:, t - 1]
            carry = carry * decay[:, t]
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)
