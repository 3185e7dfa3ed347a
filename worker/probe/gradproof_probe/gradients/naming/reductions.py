"""Formulas that reduce or multiply matrices: a bias that gets the first row, a product without its transpose, a scan.

For each input the products that could be its gradient are formed from the incoming gradient and the other tensors,
and compared with what was returned and with the derivative. Found both, the two formulas stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.shapes import axes_words, axis_sets, spreads

# Beyond this many elements a table of terms costs more than it tells.
_LARGEST = 50_000

Candidate = tuple[str, torch.Tensor]


def composed(item: Difference) -> Named | None:
    """A product of matrices, a reduction or a scan that equals what was returned."""
    if not item.is_wrong or item.r.is_complex() or item.analytic.numel() > _LARGEST or item.r.numel() < 1:
        return None
    for family in (_matrix_products, _reduced, _scans):
        candidates = list(family(item))
        mine = _match(item, candidates, item.analytic)
        if mine is not None:
            theirs = _match(item, candidates, item.reference)
            return _say(item, mine, theirs)
        gap = _match(item, candidates, item.analytic - item.reference)
        if gap is not None:
            return _say_gap(item, gap)
    return None


def _match(item: Difference, candidates: list[Candidate], target: torch.Tensor) -> tuple[float, str] | None:
    """The first candidate that is the target up to a factor; a factor of one before others."""
    known = torch.isfinite(target)
    if not bool(known.any()):
        return None
    aim = target[known]
    size = float(aim.abs().max())
    found: list[tuple[float, float, str]] = []
    for said, values in candidates:
        chosen = values[known]
        power = float((chosen * chosen).sum())
        if not 0 < power < float("inf") or size <= item.floor:
            continue
        factor = float((chosen * aim).sum()) / power
        left_over = float((aim - factor * chosen).abs().max())
        if left_over > item.floor + 1e-7 * size:
            continue
        plain = abs(abs(factor) - 1) < 1e-6
        if aim.numel() >= 3 or plain:
            found.append((0.0 if plain else 1.0, factor, said))
    if not found:
        return None
    best = min(found, key=lambda triple: triple[0])
    return best[1], best[2]


def _with_factor(factor: float, said: str) -> str:
    if abs(factor - 1) < 1e-6:
        return said
    return f"-{said}" if abs(factor + 1) < 1e-6 else f"{words.number(factor)} · {said}"


def _say(item: Difference, mine: tuple[float, str], theirs: tuple[float, str] | None) -> Named:
    returned = _with_factor(*mine)
    numbers: dict[str, object] = {"returned": returned}
    if theirs is None:
        return Named(
            "wrong_formula",
            f"the gradient for {item.name} is {returned}, which is not the derivative",
            numbers,
            f"{returned} is what backward computes: differentiate forward again",
        )
    right = _with_factor(*theirs)
    numbers["derivative"] = right
    cause = "wrong_formula"
    if mine[1].replace("ᵀ", "") == theirs[1].replace("ᵀ", ""):
        cause = "transposed"
    elif " of " in mine[1] and mine[1].partition(" of ")[2] == theirs[1].partition(" of ")[2]:
        cause = "wrong_reduction"
    return Named(
        cause,
        f"the gradient for {item.name} is {returned}, the derivative is {right}",
        numbers,
        f"{returned} is returned where {right} belongs",
    )


def _say_gap(item: Difference, gap: tuple[float, str]) -> Named:
    term = _with_factor(abs(gap[0]), gap[1])
    if gap[0] < 0:
        return Named(
            "missing_term",
            f"the gradient for {item.name} is the derivative minus {term}: that term is missing (or its sign is wrong)",
            {"term": term, "constant": gap[0]},
            f"look for the part of the product rule that gives {term}",
        )
    return Named(
        "extra_term",
        f"the gradient for {item.name} is the derivative plus {term}: that term is too much (or its sign is wrong)",
        {"term": term, "constant": gap[0]},
        f"look for {term}: it is added once too often, or a term that cancels it is missing",
    )


def _operands(item: Difference) -> list[Candidate]:
    """All tensors at hand but the incoming gradients."""
    evidence = item.evidence
    several = len(evidence.outputs) > 1
    found = [(other.name, other.value) for other in evidence.pairs if other is not item.pair]
    found.append((item.name, item.pair.value))
    found += [(f"output {i}" if several else "output", output) for i, output in enumerate(evidence.outputs)]
    return [(name, values) for name, values in found if values.is_floating_point()][:5]


def _incoming(item: Difference) -> list[Candidate]:
    several = len(item.evidence.cotangents) > 1
    return [
        (f"grad_output {i}" if several else "grad_output", g)
        for i, g in enumerate(item.evidence.cotangents)
        if g.is_floating_point()
    ][:2]


def _matrix_products(item: Difference) -> Iterator[Candidate]:
    if len(item.shape) < 2:
        return
    rows, columns = item.shape[-2:]
    for g_name, g in _incoming(item):
        for name, values in _operands(item):
            if g.dim() < 2 or values.dim() < 2:
                continue
            for left, left_name, right, right_name in ((g, g_name, values, name), (values, name, g, g_name)):
                for first, first_name in ((left, left_name), (left.mT, left_name + "ᵀ")):
                    for second, second_name in ((right, right_name), (right.mT, right_name + "ᵀ")):
                        if first.shape[-1] != second.shape[-2] or (first.shape[-2], second.shape[-1]) != (
                            rows,
                            columns,
                        ):
                            continue
                        product = _multiplied(first, second, item.shape)
                        if product is not None:
                            yield f"{first_name} @ {second_name}", product


def _multiplied(first: torch.Tensor, second: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    try:
        product = first @ second
    except RuntimeError:
        return None
    if product.dim() > len(shape):
        product = product.sum(tuple(range(product.dim() - len(shape))))
    return product if tuple(product.shape) == shape else None


def _terms(item: Difference, shape: tuple[int, ...]) -> Iterator[Candidate]:
    """Factors of the incoming gradient in a reduction, for each element of the output's shape."""
    yield "", torch.ones(shape, dtype=torch.float64)
    aligned = [(name, values) for name, tensor in _operands(item) for values in spreads(tensor, shape)][:4]
    for name, values in aligned:
        yield name, values
    for name, values in aligned:
        yield f"{name}²", values * values
        yield f"|{name}|", values.abs()
        yield f"(1 - {name})", 1 - values
        yield f"1 / {name}", 1 / values
        yield f"min({name}, 0)", values.clamp_max(0)
        yield f"max({name}, 0)", values.clamp_min(0)
        for axes in axis_sets(shape)[:3]:
            over = axes_words(axes, shape)
            centred = values - values.mean(axes, keepdim=True)
            deviation = (centred * centred).mean(axes, keepdim=True).sqrt()
            yield f"({name} - its mean over {over})", centred
            yield f"normalised {name} over {over}", centred / deviation
            yield f"{name} / its root mean square over {over}", values / (values**2).mean(axes, keepdim=True).sqrt()
            yield f"{name} / its norm over {over}", values / (values**2).sum(axes, keepdim=True).sqrt()
            yield f"softmax of {name} over {over}", (values - values.amax(axes, keepdim=True)).exp()
    for one in range(len(aligned)):
        for two in range(one + 1, len(aligned)):
            yield f"{aligned[one][0]} · {aligned[two][0]}", aligned[one][1] * aligned[two][1]
            yield f"({aligned[one][0]} - {aligned[two][0]})", aligned[one][1] - aligned[two][1]


def _reduced(item: Difference) -> Iterator[Candidate]:
    """Sums over the axes that a parameter is broadcast along, and what is taken for them."""
    for g_name, g in _incoming(item):
        shape = tuple(g.shape)
        if g.numel() <= item.analytic.numel() or g.numel() > _LARGEST:
            continue
        ways = list(_ways(shape, item.shape))
        if not ways:
            continue
        for term, values in _terms(item, shape):
            said = f"{g_name} · {term}" if term else g_name
            product = g * values
            for how, reduce in ways:
                yield f"{how} of {said}", reduce(product)


def _ways(shape: tuple[int, ...], to: tuple[int, ...]) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """Ways to make a tensor of shape `to` from one of `shape`."""
    count = len(shape)
    kept_sets: list[tuple[int, ...]] = []
    if len(to) <= count:
        trailing = tuple(range(count - len(to), count))
        kept_sets.append(tuple(axis for axis, length in zip(trailing, to, strict=True) if length > 1))
    long = tuple(length for length in to if length > 1)
    if len(long) == 1:
        kept_sets += [(axis,) for axis in range(count) if shape[axis] == long[0]]
    for kept in dict.fromkeys(kept_sets):
        if tuple(shape[axis] for axis in kept) != long:
            continue
        gone = tuple(axis for axis in range(count) if axis not in kept)
        if not gone:
            continue
        over = axes_words(gone, shape)
        yield f"the sum over {over}", _Reduction(gone, to, "sum")
        yield f"the largest over {over}", _Reduction(gone, to, "largest")
        for index, which in ((0, "first"), (-1, "last")):
            yield f"the {which} slice of {over}", _Reduction(gone, to, "pick", index)
            if len(gone) > 1:
                rest = axes_words(gone[1:], shape)
                yield f"the {which} index of axis {gone[0]}, summed over {rest},", _Reduction(gone, to, "half", index)


@dataclass(frozen=True, slots=True)
class _Reduction:
    axes: tuple[int, ...]
    to: tuple[int, ...]
    how: Literal["sum", "largest", "pick", "half"]
    index: int = 0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if self.how == "sum":
            reduced = values.sum(self.axes)
        elif self.how == "largest":
            reduced = values.amax(self.axes)
        elif self.how == "pick":
            reduced = _picked(values, self.axes, self.index)
        else:
            # The first of the reduced axes loses its place: those behind it move up by one.
            reduced = values.select(self.axes[0], self.index).sum(tuple(axis - 1 for axis in self.axes[1:]))
        return reduced.reshape(self.to)


def _picked(values: torch.Tensor, axes: tuple[int, ...], index: int) -> torch.Tensor:
    for axis in reversed(axes):
        values = values.select(axis, index)
    return values


def _scans(item: Difference) -> Iterator[Candidate]:
    """Running sums from either end, with and without the element itself, and sums that are handed to all."""
    shape = item.shape
    for g_name, tensor in _incoming(item):
        for g in spreads(tensor, shape):
            for term, values in _short_terms(item, shape):
                product = g * values
                said = f"{g_name} · {term}" if term else g_name
                for axis in range(len(shape)):
                    if shape[axis] < 3:
                        continue
                    forwards = product.cumsum(axis)
                    backwards = product.flip(axis).cumsum(axis).flip(axis)
                    yield f"the running sum along axis {axis} of {said}", forwards
                    yield f"the running sum from the end along axis {axis} of {said}", backwards
                    yield f"the running sum without its last term along axis {axis} of {said}", forwards - product
                    yield (
                        f"the running sum from the end without its last term along axis {axis} of {said}",
                        backwards - product,
                    )


def _short_terms(item: Difference, shape: tuple[int, ...]) -> Iterator[Candidate]:
    yield "", torch.ones(shape, dtype=torch.float64)
    for name, tensor in _operands(item)[:3]:
        for values in spreads(tensor, shape):
            yield name, values
