"""Right Functions, each of which stands alone. The wrong ones of both sets are copies of these with one change."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Softplus(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return grad * slope, None


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (cdf + x * pdf)


class SwiGLU(Function):
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
        return grad_x, grad_y


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, -x) - math.log(2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.tanh(x)


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * (1 - out * out)


class PowerLaw(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        return grad_x, grad_exponent


class LogSumExp(Function):
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


class Softmax(Function):
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
        return out * (grad - inner), None


class LogSoftmax(Function):
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
        return grad - torch.exp(out) * total


class RowProduct(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        others = x.unsqueeze(-2).expand(*x.shape[:-1], n, n).clone()
        others.diagonal(dim1=-2, dim2=-1).fill_(1)
        return grad.unsqueeze(-1) * others.prod(-1)


class UnitNormalize(Function):
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
        return grad / norm - x * inner / norm**3, None


class LayerNorm(Function):
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
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * normed).mean(-1, keepdim=True)
        grad_x = rstd * (dx - mean_dx - normed * proj)
        return grad_x, grad_weight, grad_bias, None


class RMSNorm(Function):
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
        proj = (dx * x).sum(-1, keepdim=True) / n
        grad_x = rstd * dx - x * proj * rstd**3
        return grad_x, grad_weight, None


class BatchNorm(Function):
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


class Linear(Function):
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
        grad_weight = flat_g.t() @ flat_x
        grad_bias = flat_g.sum(0)
        return grad_x, grad_weight, grad_bias


class MatMul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        return grad_a, grad_b


class Bilinear(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        grad_x = g * (y @ weight.t())
        grad_weight = (g * x).t() @ y
        grad_y = g * (x @ weight)
        return grad_x, grad_weight, grad_y


class LowRank(Function):
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
        grad_up = (x @ down).t() @ grad
        grad_down = x.t() @ grad_hidden
        return grad_hidden @ down.t(), grad_down, grad_up, None


class Attention(Function):
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
        grad_k = grad_s.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None


class MaskedAttention(Function):
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


class Rotary(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        first, second = x.chunk(2, -1)
        ctx.save_for_backward(cos, sin)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        first, second = grad.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1), None, None


class CrossEntropy(Function):
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
        scale = 1 / target.numel() if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class PseudoHuber(Function):
    @staticmethod
    def forward(ctx, x, y, delta):
        ctx.save_for_backward(x, y)
        ctx.delta = delta
        return delta**2 * (torch.sqrt(1 + ((x - y) / delta) ** 2) - 1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        residual = x - y
        slope = residual / torch.sqrt(1 + (residual / ctx.delta) ** 2)
        return grad * slope, -grad * slope, None


class BinaryCrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = torch.logaddexp(logits, torch.zeros_like(logits)) - logits * target
        return losses.mean() if reduction == "mean" else losses.sum()

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        slope = torch.sigmoid(logits) - target
        if ctx.reduction == "mean":
            slope = slope / logits.numel()
        return grad * slope, None, None


class SquaredError(Function):
    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.save_for_backward(x, y)
        ctx.reduction = reduction
        losses = (x - y) ** 2
        return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        slope = 2 * (x - y)
        if ctx.reduction == "mean":
            slope = slope / x.numel()
        return grad * slope, -grad * slope, None


class CausalConv(Function):
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
        return grad_x, grad_weight


class Conv1d(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.conv1d(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = torch.nn.functional.conv_transpose1d(grad, weight)
        windows = x.unfold(-1, weight.shape[-1], 1)
        grad_weight = torch.einsum("bot,bitk->oik", grad, windows)
        return grad_x, grad_weight


class LinearScan(Function):
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
                grad_decay[t] = carry * out[:, t - 1]
            carry = carry * decay[:, t]
        return torch.stack(grad_decay, 1), torch.stack(grad_x, 1)


class Embedding(Function):
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
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_add(0, index.reshape(-1), flat), None


class SegmentMean(Function):
    @staticmethod
    def forward(ctx, x, segment, count):
        sizes = torch.bincount(segment, minlength=count).clamp(min=1).to(x.dtype)
        sums = torch.zeros(count, x.shape[-1], dtype=x.dtype).index_add(0, segment, x)
        ctx.save_for_backward(segment, sizes)
        return sums / sizes.unsqueeze(-1)

    @staticmethod
    def backward(ctx, grad):
        segment, sizes = ctx.saved_tensors
        return (grad / sizes.unsqueeze(-1))[segment], None, None


class MeanVariance(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        variance = ((x - mean.unsqueeze(-1)) ** 2).mean(-1)
        ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx, grad_mean, grad_variance):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        return (grad_mean.unsqueeze(-1) + 2 * centred * grad_variance.unsqueeze(-1)) / n


class SoftmaxAndLse(Function):
    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, -1)
        probs = torch.exp(x - lse.unsqueeze(-1))
        ctx.save_for_backward(probs)
        return probs, lse

    @staticmethod
    def backward(ctx, grad_probs, grad_lse):
        (probs,) = ctx.saved_tensors
        inner = (grad_probs * probs).sum(-1, keepdim=True)
        return probs * (grad_probs - inner + grad_lse.unsqueeze(-1))


class Polar(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.sqrt(x * x + y * y), torch.atan2(y, x)

    @staticmethod
    def backward(ctx, grad_radius, grad_angle):
        x, y = ctx.saved_tensors
        square = x * x + y * y
        radius = torch.sqrt(square)
        grad_x = grad_radius * x / radius - grad_angle * y / square
        grad_y = grad_radius * y / radius + grad_angle * x / square
        return grad_x, grad_y


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class CumulativeSum(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        dim = ctx.dim
        return grad.flip(dim).cumsum(dim).flip(dim), None


class PairwiseSquared(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        weighted = 2 * grad.unsqueeze(-1) * difference
        return weighted.sum(-2), -weighted.sum(-3)


class WeightedMean(Function):
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
        return g * weight, g * (x - out.unsqueeze(-1))


class KLDivergence(Function):
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
        return grad * (probs * mass - target) / rows, None


class LogMeanDifference(Function):
    """(exp(x) - exp(y)) / (x - y), with its limit exp(x) where x = y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        half = (x - y) / 2
        safe = torch.where(half.abs() < 1e-4, torch.ones_like(half), half)
        ratio = torch.where(half.abs() < 1e-4, 1 + half * half / 6, torch.sinh(safe) / safe)
        return torch.exp((x + y) / 2) * ratio

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        half = (x - y) / 2
        small = half.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(half), half)
        ratio = torch.where(small, 1 + half * half / 6, torch.sinh(safe) / safe)
        slope = torch.where(small, half / 3, (torch.cosh(safe) - torch.sinh(safe) / safe) / safe)
        middle = torch.exp((x + y) / 2)
        return grad * middle * (ratio + slope) / 2, grad * middle * (ratio - slope) / 2


class GroupNorm(Function):
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
        grad_weight = (grad * normed).sum((0, -1))
        dx = (grad * weight.unsqueeze(-1)).reshape(batch, ctx.groups, -1)
        hat = normed.reshape(batch, ctx.groups, -1)
        mean_dx = dx.mean(-1, keepdim=True)
        proj = (dx * hat).mean(-1, keepdim=True)
        grad_x = (rstd * (dx - mean_dx - hat * proj)).reshape(normed.shape)
        return grad_x, grad_weight, None, None
