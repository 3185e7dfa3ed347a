"""Ordinary inputs and plain torch code for each Function, by its name; right and wrong copies share them.

The plain code is the truth that every gradient is compared with, so it may not use the Functions. (The logarithmic
mean is the exception: its forward is differentiable code with series and closed form, and is taken as it stands.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.unseen import functions
from benchmarks.unseen.values import integers, normal, positive, rotary


class _Context:
    """Stands in for ctx, so that a forward runs as plain code."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Nothing is read back."""


def plain_scan(decay: Tensor, x: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1)


def plain_segment(x: Tensor, segment: Tensor, count: int) -> Tensor:
    hot = functional.one_hot(segment, count).to(x.dtype)
    return hot.t() @ x / hot.sum(0).clamp(min=1).unsqueeze(-1)


def plain_gated_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return x * rstd, rstd


def plain_same_conv(x: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[-1]
    return functional.conv1d(functional.pad(x, ((width - 1) // 2, width // 2)), weight)


# name -> (ordinary inputs, the positions that get gradients, plain torch code)
PLAIN: Final[dict[str, tuple[Callable[[], tuple[Any, ...]], tuple[int, ...], Callable[..., Any]]]] = {
    "Softplus": (lambda: (normal(6, 8), 1.5), (0,), lambda x, b: torch.logaddexp(b * x, torch.zeros_like(x)) / b),
    "Gelu": (lambda: (normal(5, 8),), (0,), functional.gelu),
    "SwiGLU": (lambda: (normal(4, 8), normal(4, 8, seed=1)), (0, 1), lambda x, y: functional.silu(x) * y),
    "LogCosh": (lambda: (normal(7, 6),), (0,), lambda x: torch.logaddexp(x, -x) - 0.6931471805599453),
    "Tanh": (lambda: (normal(6, 6),), (0,), torch.tanh),
    "PowerLaw": (lambda: (positive(5, 6), normal(6)), (0, 1), lambda x, p: x**p),
    "LogSumExp": (lambda: (normal(5, 8), -1), (0,), torch.logsumexp),
    "Softmax": (lambda: (normal(5, 8), -1), (0,), torch.softmax),
    "LogSoftmax": (lambda: (normal(5, 8),), (0,), lambda x: torch.log_softmax(x, -1)),
    "RowProduct": (lambda: (normal(6, 6),), (0,), lambda x: x.prod(-1)),
    "UnitNormalize": (
        lambda: (normal(5, 8), 1e-6),
        (0,),
        lambda x, e: x / torch.sqrt((x * x).sum(-1, keepdim=True) + e),
    ),
    "LayerNorm": (
        lambda: (normal(6, 8), normal(8, seed=1), normal(8, seed=2), 1e-5),
        (0, 1, 2),
        lambda x, w, b, e: functional.layer_norm(x, (x.shape[-1],), w, b, e),
    ),
    "RMSNorm": (
        lambda: (normal(6, 8), normal(8, seed=1), 1e-5),
        (0, 1),
        lambda x, w, e: x / torch.sqrt((x * x).mean(-1, keepdim=True) + e) * w,
    ),
    "BatchNorm": (
        lambda: (normal(8, 6), normal(6, seed=1), normal(6, seed=2), 1e-5),
        (0, 1, 2),
        lambda x, w, b, e: (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + e) * w + b,
    ),
    "Linear": (lambda: (normal(6, 8), normal(5, 8, seed=1), normal(5)), (0, 1, 2), functional.linear),
    "MatMul": (lambda: (normal(4, 6), normal(6, 5, seed=1)), (0, 1), torch.matmul),
    "Bilinear": (
        lambda: (normal(6, 4), normal(4, 5, seed=1), normal(6, 5, seed=2)),
        (0, 1, 2),
        lambda x, w, y: ((x @ w) * y).sum(-1),
    ),
    "LowRank": (
        lambda: (normal(5, 8), normal(8, 3, seed=1), normal(3, 6, seed=2), 0.5),
        (0, 1, 2),
        lambda x, a, b, s: x @ a @ b * s,
    ),
    "Attention": (
        lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.35),
        (0, 1, 2),
        lambda q, k, v, s: torch.softmax(q @ k.transpose(-1, -2) * s, -1) @ v,
    ),
    "MaskedAttention": (
        lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.5 * normal(6, 6, seed=3)),
        (0, 1, 2),
        lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + m, -1) @ v,
    ),
    "Rotary": (
        lambda: (normal(2, 6, 8), *rotary(6, 4)),
        (0,),
        lambda x, c, s: torch.cat(
            [x.chunk(2, -1)[0] * c - x.chunk(2, -1)[1] * s, x.chunk(2, -1)[0] * s + x.chunk(2, -1)[1] * c], -1
        ),
    ),
    "CrossEntropy": (
        lambda: (normal(8, 5), integers(5, 8), "mean"),
        (0,),
        lambda x, t, r: functional.cross_entropy(x.flatten(0, -2), t.flatten(), reduction=r),
    ),
    "PseudoHuber": (
        lambda: (normal(6, 5), normal(6, 5, seed=1), 0.8),
        (0, 1),
        lambda x, y, d: d**2 * (torch.sqrt(1 + ((x - y) / d) ** 2) - 1),
    ),
    "BinaryCrossEntropy": (
        lambda: (normal(6, 5), integers(2, 6, 5).double(), "mean"),
        (0,),
        lambda x, t, r: functional.binary_cross_entropy_with_logits(x, t, reduction=r),
    ),
    "SquaredError": (
        lambda: (normal(6, 5), normal(6, 5, seed=1), "mean"),
        (0, 1),
        lambda x, y, r: functional.mse_loss(x, y, reduction=r),
    ),
    "CausalConv": (
        lambda: (normal(2, 3, 10), normal(3, 4)),
        (0, 1),
        lambda x, w: functional.conv1d(functional.pad(x, (w.shape[-1] - 1, 0)), w.unsqueeze(1), groups=w.shape[0]),
    ),
    "Conv1d": (lambda: (normal(2, 3, 10), normal(4, 3, 3)), (0, 1), functional.conv1d),
    "LinearScan": (lambda: (torch.sigmoid(normal(2, 8, 3)), normal(2, 8, 3, seed=1)), (0, 1), plain_scan),
    "Embedding": (lambda: (normal(10, 4), integers(10, 12)), (0,), lambda w, i: w[i]),
    "SegmentMean": (lambda: (normal(12, 4), integers(5, 12), 5), (0,), plain_segment),
    "MeanVariance": (lambda: (normal(6, 8),), (0,), lambda x: (x.mean(-1), x.var(-1, unbiased=False))),
    "SoftmaxAndLse": (lambda: (normal(5, 8),), (0,), lambda x: (torch.softmax(x, -1), torch.logsumexp(x, -1))),
    "Polar": (
        lambda: (normal(5, 6), normal(5, 6, seed=1)),
        (0, 1),
        lambda x, y: (torch.sqrt(x * x + y * y), torch.atan2(y, x)),
    ),
    "Scale": (lambda: (normal(6, 8), normal(8, seed=1)), (0, 1), lambda x, s: x * s),
    "CumulativeSum": (lambda: (normal(5, 8), -1), (0,), lambda x, d: x.cumsum(d)),
    "PairwiseSquared": (
        lambda: (normal(6, 4), normal(5, 4, seed=1)),
        (0, 1),
        lambda x, y: ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1),
    ),
    "WeightedMean": (lambda: (normal(6, 8), positive(6, 8)), (0, 1), lambda x, w: (x * w).sum(-1) / w.sum(-1)),
    "KLDivergence": (
        lambda: (normal(6, 5), torch.softmax(normal(6, 5, seed=1), -1)),
        (0,),
        lambda x, t: (torch.xlogy(t, t) - t * torch.log_softmax(x, -1)).sum(-1).mean(),
    ),
    "LogMeanDifference": (
        lambda: (normal(5, 6), normal(5, 6, seed=1)),
        (0, 1),
        lambda x, y: functions.LogMeanDifference.forward(_Context(), x, y),
    ),
    "GroupNorm": (
        lambda: (normal(2, 6, 5), normal(6), 3, 1e-5),
        (0, 1),
        lambda x, w, g, e: functional.group_norm(x, g, w, None, e),
    ),
    "GatedNorm": (lambda: (normal(5, 8),), (0,), plain_gated_norm),
    "Intensity": (lambda: (normal(6, 6),), (0,), lambda x: (x * x.conj()).real if x.is_complex() else x * x),
    "Gather": (lambda: (normal(5, 8), normal(5, 8, seed=9).argsort(-1)[:, :6]), (0,), lambda x, i: x.gather(-1, i)),
    "PowerSpectrum": (lambda: (normal(5, 8),), (0,), lambda x: torch.fft.rfft(x).abs() ** 2),
    "SameConv": (lambda: (normal(2, 3, 8), normal(4, 3, 3)), (0, 1), plain_same_conv),
    "PairPool": (
        lambda: (normal(5, 8),),
        (0,),
        lambda x: x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (-1, 2)).mean(-1),
    ),
}


def ordinary(name: str) -> tuple[Any, ...]:
    return PLAIN[name][0]()
