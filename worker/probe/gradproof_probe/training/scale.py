"""How large gradients are, layer by layer: vanishing or exploding with depth, and what half precision would lose.

Numbers and advice only. A size is no fault by itself: the loss, its scale and the optimiser decide what it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from gradproof_probe.training.flow import Run

_LEAST_DEPTH: Final = 4  # of fewer layers a trend says nothing
# The geometric mean over seeds of first over last layer. Healthy networks of torchvision, timm and vit-pytorch stay
# within 1e-2 to 1e2 (a stem of 3 channels, a classifier that starts small); 30 sigmoid layers reach 1e-18.
_EXTREME: Final = 1e4
_SHOWN_LAYERS: Final = 30
_HALF_SMALLEST: Final = 2.0**-24  # below it float16 has nothing but zero
_HALF_NORMAL: Final = 2.0**-14
_HALF_LARGEST: Final = 65504.0
_NOISE: Final = 1e-14
_LOST: Final = 0.01  # share of the gradient's numbers that half precision may lose before a scale is advised


def gradient_scale(runs: Sequence[Run]) -> dict[str, Any]:
    """Evidence; empty where no weight got a gradient."""
    layers = _layers(runs)
    norms = [_total(run) for run in runs]
    if not layers or not all(math.isfinite(norm) for norm in norms):
        return {}
    found: dict[str, Any] = {
        "of": "the sum of the outputs with random weights of size 1",
        "total_norm": norms,
        "layers": [{"layer": name, "gradient": gradient, "weight": weight} for name, gradient, weight in layers][
            :_SHOWN_LAYERS
        ],
    }
    advice = []
    if len(layers) >= _LEAST_DEPTH:
        per_layer = _slope([math.log(gradient) for _, gradient, _ in layers])
        ratio = layers[0][1] / layers[-1][1]
        found |= {"first_to_last": ratio, "per_layer": math.exp(per_layer)}
        advice += _of_depth(ratio, per_layer, norms)
    half = _half_precision(runs)
    found["float16"] = half
    if half["lost"] > _LOST:
        advice.append(
            f"float16 would round {half['lost']:.0%} of these gradients to zero: scale the loss by "
            f"{half['loss_scale']:g} (torch.amp.GradScaler does), or use bfloat16"
        )
    if advice:
        found["advice"] = advice
    return found


def _layers(runs: Sequence[Run]) -> list[tuple[str, float, float]]:
    """(layer, root mean square of its weights' gradient, of its weights) in the order of the calls; vectors aside."""
    order = {name: number for number, name in enumerate(runs[0].order)}
    found: dict[str, tuple[float, float]] = {}
    for variable in runs[0].experiment.variables:
        gradients = [run.gradients.get(variable.name) for run in runs]
        sizes = [_rms(item) for item in gradients if item is not None]
        if variable.kind != "parameter" or variable.base.ndim < 2 or not sizes or not all(sizes):
            continue
        mean = math.exp(sum(map(math.log, sizes)) / len(sizes))
        if math.isfinite(mean):
            found.setdefault(variable.name.rpartition(".")[0], (mean, _rms(variable.base)))
    names = sorted(found, key=lambda name: order.get(name, len(order)))
    return [(name or "the module itself", *found[name]) for name in names]


def _of_depth(ratio: float, per_layer: float, norms: Sequence[float]) -> list[str]:
    factor = math.exp(per_layer)
    if ratio < 1 / _EXTREME:
        return [
            f"the gradient of the first layer is {ratio:.1e} of the last one's (by {1 / factor:.2g} less with each "
            f"layer towards the input): add residual connections or normalisation, or multiply the standard "
            f"deviation of the initial weights by {factor:.2g}"
        ]
    if ratio > _EXTREME:
        typical = sorted(norms)[len(norms) // 2]
        return [
            f"the gradient of the first layer is {ratio:.1e} times the last one's (by {1 / factor:.2g} more with each "
            f"layer towards the input): multiply the standard deviation of the initial weights by {factor:.2g}, and "
            f"clip: torch.nn.utils.clip_grad_norm_(parameters, {typical:.2g}) is the norm that was seen here"
        ]
    return []


def _slope(values: Sequence[float]) -> float:
    """Of the least squares line through values at 0, 1, 2, …"""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    above = sum((index - middle) * (value - mean) for index, value in enumerate(values))
    return above / sum((index - middle) ** 2 for index in range(len(values)))


def _half_precision(runs: Sequence[Run]) -> dict[str, float]:
    """The share of the numbers that float16 has no place for, and a power of two that brings them into its range."""
    sizes = torch.cat(
        [g.abs().flatten().to(torch.float64) for r in runs for g in r.gradients.values() if g is not None]
    )
    # What a true gradient of zero leaves behind (a bias before batch norm) is rounding, and nothing to be saved.
    sizes = sizes[sizes > _NOISE * sizes.max()]
    if not sizes.numel():
        return {"lost": 0.0, "loss_scale": 1.0}
    largest = float(sizes.max())
    typical = float(sizes.median())
    # Up to normal numbers for the typical gradient, with a factor of 8 to spare for the largest.
    wanted = min(_HALF_NORMAL / typical * 2**6, _HALF_LARGEST / 8 / largest)
    scale = 2.0 ** math.floor(math.log2(wanted)) if 0 < wanted < math.inf else 1.0
    return {"lost": float((sizes < _HALF_SMALLEST / 2).double().mean()), "loss_scale": max(scale, 1.0)}


def _total(run: Run) -> float:
    return math.sqrt(
        sum(float(g.abs().to(torch.float64).square().sum()) for g in run.gradients.values() if g is not None)
    )


def _rms(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    return float(tensor.detach().abs().to(torch.float64).square().mean().sqrt())
