"""What formulas of backward are made of, evaluated at some coordinates of one gradient: x, its powers, 1 - y, norms.

A table of named vectors for the rules that look for a formula. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.shapes import axes_words, axis_sets, spreads

_SAMPLE: Final = 96
_VARIABLES: Final = 5

Entry = tuple[str, int]  # the term with {} for the variable's name, and how far-fetched it is

_FUNCTIONS: Final[tuple[tuple[str, int, Callable[[torch.Tensor], torch.Tensor]], ...]] = (
    ("{}", 1, lambda v: v),
    ("{}²", 2, lambda v: v * v),
    ("{}³", 3, lambda v: v * v * v),
    ("|{}|", 2, torch.abs),
    ("sign({})", 2, torch.sign),
    ("root of |{}|", 2, lambda v: v.abs().sqrt()),
    ("(1 - {})", 2, lambda v: 1 - v),
    ("(1 + {})", 2, lambda v: 1 + v),
    ("(1 - {}²)", 2, lambda v: 1 - v * v),
    ("(1 + {}²)", 3, lambda v: 1 + v * v),
    ("exp({})", 2, torch.exp),
    ("log |{}|", 2, lambda v: v.abs().log()),
    ("(1 + log |{}|)", 3, lambda v: 1 + v.abs().log()),
    ("sigmoid({})", 2, torch.sigmoid),
    ("(1 - sigmoid({}))", 3, lambda v: torch.sigmoid(-v)),
    ("tanh({})", 3, torch.tanh),
    ("(1 - tanh({})²)", 3, lambda v: 1 - torch.tanh(v) ** 2),
    ("sin({})", 3, torch.sin),
    ("cos({})", 3, torch.cos),
    ("normal density({})", 3, lambda v: torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)),
    ("normal distribution({})", 3, torch.special.ndtr),
    ("softplus({})", 3, torch.nn.functional.softplus),
    ("(1 + |{}|)", 3, lambda v: 1 + v.abs()),
    ("exp(-{}²)", 3, lambda v: torch.exp(-v * v)),
    ("sigmoid'({})", 3, lambda v: torch.sigmoid(v) * torch.sigmoid(-v)),
    ("{0} · sigmoid'({0})", 4, lambda v: v * torch.sigmoid(v) * torch.sigmoid(-v)),
    ("{0} · normal density({0})", 4, lambda v: v * torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)),
    ("{0} · exp(-{0}²)", 4, lambda v: v * torch.exp(-v * v)),
    ("{0} · (1 - {0})", 3, lambda v: v * (1 - v)),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`table`: one row a name, one column a sampled coordinate. `incoming`: rows made of grad_output alone."""

    names: list[str]
    costs: list[int]
    table: torch.Tensor
    incoming: set[int]
    sample: torch.Tensor
    cotangents: list[tuple[str, torch.Tensor]]  # at the sampled coordinates


def sample(item: Difference, count: int = _SAMPLE) -> torch.Tensor:
    """Positions among the known coordinates, evenly spread over those where something can be told."""
    told = item.telling.nonzero().reshape(-1)
    if told.numel() <= count:
        return told
    steps = torch.linspace(0, told.numel() - 1, count, device=told.device).round().to(torch.long)
    return told[steps]


def vocabulary(item: Difference) -> Vocabulary:
    at = sample(item)
    shape = item.shape
    own = item.pair.value
    variables: list[tuple[str, torch.Tensor]] = [(item.name, own)]
    evidence = item.evidence
    several = len(evidence.outputs) > 1
    for place, output in enumerate(evidence.outputs):
        name = f"output {place}" if several else "output"
        variables += [(name, values) for values in spreads(output, shape) if not values.is_complex()]
    cotangents: list[tuple[str, torch.Tensor]] = []
    for place, cotangent in enumerate(evidence.cotangents):
        name = f"grad_output {place}" if several else "grad_output"
        cotangents += [(name, values) for values in spreads(cotangent, shape) if not values.is_complex()]
    others = [other for other in evidence.pairs if other is not item.pair]
    for other in others:
        variables += [(other.name, values) for values in spreads(other.value, shape) if not values.is_complex()]
    variables = variables[:_VARIABLES]
    for other in others[:2]:
        if tuple(other.value.shape) == shape and other.value.numel() > 1 and not other.value.is_complex():
            variables.append((f"({item.name} - {other.name})", own - other.value))
    variables = variables[: _VARIABLES + 1]

    picked = torch.stack([item.pick(values)[at] for _, values in variables])
    names: list[str] = []
    costs: list[int] = []
    rows: list[torch.Tensor] = []
    for form, cost, function in _FUNCTIONS:
        rows.append(function(picked))
        for place, (name, _) in enumerate(variables):
            names.append(form.format(name))
            costs.append(cost + (0 if place < 2 else 1))
    table = [torch.cat(rows)]
    for name, cost, values in _statistics(item.name, own, shape):
        names.append(name)
        costs.append(cost)
        table.append(item.pick(values.expand(shape))[at][None])
    incoming: set[int] = set()
    for name, values in cotangents:
        chosen = item.pick(values)[at]
        forms = [
            ("{}", 1, chosen),
            ("|{}|", 2, chosen.abs()),
            ("sign({})", 2, torch.sign(chosen)),
            ("{}²", 2, chosen**2),
        ]
        if values.numel() > 1:
            for axes in axis_sets(shape)[:4]:
                mean = item.pick(values.mean(axes, keepdim=True).expand(shape))[at]
                forms.append(("mean of {} over " + axes_words(axes, shape), 3, mean))
        for form, cost, vector in forms:
            incoming.add(len(names))
            names.append(form.format(name))
            costs.append(cost)
            table.append(vector[None])
    return Vocabulary(
        names, costs, torch.cat(table), incoming, at, [(name, item.pick(values)[at]) for name, values in cotangents]
    )


def _statistics(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> list[tuple[str, int, torch.Tensor]]:
    """Means, norms and deviations of the input along axes, and what is made with them."""
    found: list[tuple[str, int, torch.Tensor]] = []
    for axes in axis_sets(shape)[:4]:
        over = axes_words(axes, shape)
        mean = x.mean(axes, keepdim=True)
        centred = x - mean
        squares = (x * x).sum(axes, keepdim=True)
        count = math.prod(shape[axis] for axis in axes)
        variance = (centred * centred).mean(axes, keepdim=True)
        norm, deviation = squares.sqrt(), variance.sqrt()
        shifted = x - x.amax(axes, keepdim=True)
        exponential = shifted.exp()
        total = exponential.sum(axes, keepdim=True)
        found += [
            (f"norm of {name} over {over}", 2, norm),
            (f"norm² of {name} over {over}", 3, squares),
            (f"standard deviation of {name} over {over}", 2, deviation),
            (f"variance of {name} over {over}", 2, variance),
            (f"root mean square of {name} over {over}", 3, (squares / count).sqrt()),
            (f"sum of {name} over {over}", 2, mean * count),
            (f"sum of |{name}| over {over}", 3, x.abs().sum(axes, keepdim=True)),
            (f"softmax of {name} over {over}", 2, exponential / total),
            (f"log-softmax of {name} over {over}", 3, shifted - total.log()),
            (f"normalised {name} over {over}", 3, centred / deviation.clamp_min(1e-300)),
            (f"({name} - its mean over {over})", 3, centred),
            (f"{name} / its norm over {over}", 3, x / norm.clamp_min(1e-300)),
        ]
    return found
