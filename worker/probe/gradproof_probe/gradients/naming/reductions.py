"""Formulas that reduce or multiply matrices: a bias that gets the first row, a product without its transpose, a scan.

For each input the products that could be its gradient are formed from the incoming gradient and the other tensors,
and compared with what was returned and with the derivative. Found both, the two formulas stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.shapes import axes_words, axis_sets, spreads

# Beyond this many elements the candidates cost more than they tell.
_LARGEST: Final = 50_000
_ONES: Final = "(all ones)"
_SCREEN: Final = 64  # elements that tell most candidates apart
_FEW: Final = 5_000  # elements beyond which products of three matrices are left out
_MOST_PRODUCTS: Final = 150
_MOST_TERMS: Final = 2_000_000  # elements of all products of a reduction together


@dataclass(frozen=True, slots=True)
class _Match:
    factor: float
    said: str

    def spelled(self) -> str:
        if abs(self.factor - 1) < 1e-6:
            return self.said
        return f"-{self.said}" if abs(self.factor + 1) < 1e-6 else f"{words.number(self.factor)} · {self.said}"


class _Candidates:
    """Named tensors of the gradient's shape, one row each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: list[torch.Tensor] = []

    def add(self, name: str, values: torch.Tensor) -> None:
        self.names.append(name)
        self.rows.append(values.reshape(1, -1))

    def match(self, item: Difference, target: torch.Tensor) -> _Match | None:
        """The first that is the target (flat) up to a factor; a factor of one before others."""
        known = torch.isfinite(target).nonzero().reshape(-1)
        aim = target[known]
        size = float(aim.abs().max()) if aim.numel() else 0.0
        if not self.rows or size <= 10 * item.floor:
            return None
        limit = item.floor + 1e-7 * size
        few = known[:: max(1, known.numel() // _SCREEN)]
        table = torch.cat([row[:, few] for row in self.rows])
        factors, rest = _fit(table, target[few])
        near = (rest <= limit).nonzero().reshape(-1).tolist()
        plain = [row for row in near if abs(abs(float(factors[row])) - 1) < 1e-6]
        # Fewer than three elements have a factor with anything.
        for row in plain + ([row for row in near if row not in plain] if aim.numel() >= 3 else []):
            factor, left_over = _fit(self._row(row)[known][None], aim)
            if float(left_over) <= limit:
                return _Match(float(factor), self.names[row])
        return None

    def _row(self, number: int) -> torch.Tensor:
        for block in self.rows:
            if number < len(block):
                return block[number]
            number -= len(block)
        raise IndexError(number)


def _fit(table: torch.Tensor, aim: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best factor of each row, and the largest element that it leaves; NaN for rows of zeros."""
    factors = (table @ aim) / (table * table).sum(1)
    return factors, (aim - factors[:, None] * table).abs().amax(1)


def composed(item: Difference) -> Named | None:
    """A product of matrices, a convolution, a reduction or a scan that equals what was returned."""
    if not item.is_wrong or item.r.is_complex() or item.analytic.numel() > _LARGEST:
        return None
    for family in (_matrix_products, _convolutions, _reduced, _scans, _triple_products):
        candidates = _Candidates()
        family(item, candidates)
        mine = candidates.match(item, item.analytic.reshape(-1))
        theirs = candidates.match(item, item.reference.reshape(-1))
        if mine is not None and _ONES in mine.said:
            return _without_incoming(item, mine)
        if mine is not None and theirs is not None and mine.said != theirs.said:
            return _both(item, mine, theirs)
        gap = candidates.match(item, (item.analytic - item.reference).reshape(-1))
        if gap is not None:
            return _gap(item, gap)
        if mine is not None:
            return Named(
                "wrong_formula",
                f"the gradient for {item.name} is {mine.spelled()}, which is not the derivative",
                {"returned": mine.spelled()},
                f"{mine.spelled()} is what backward computes: differentiate forward again",
            )
    return None


def _without_incoming(item: Difference, mine: _Match) -> Named:
    return Named(
        "ignores_grad_output",
        f"the gradient for {item.name} is {mine.spelled()}: the incoming gradient is not in it, or only as one number",
        {"returned": mine.spelled()},
        "backward must use grad_output element by element, whatever it is: not assume ones, not reduce it",
    )


def _both(item: Difference, mine: _Match, theirs: _Match) -> Named:
    cause = "wrong_formula"
    if mine.said.replace("ᵀ", "") == theirs.said.replace("ᵀ", ""):
        cause = "transposed"
    elif " of " in mine.said and mine.said.rpartition(" of ")[2] == theirs.said.rpartition(" of ")[2]:
        cause = "wrong_reduction"
    return Named(
        cause,
        f"the gradient for {item.name} is {mine.spelled()}, the derivative is {theirs.spelled()}",
        {"returned": mine.spelled(), "derivative": theirs.spelled()},
        f"{mine.spelled()} is returned where {theirs.spelled()} belongs",
    )


def _gap(item: Difference, gap: _Match) -> Named:
    term = _Match(abs(gap.factor), gap.said).spelled()
    side, lacking = ("minus", term) if gap.factor < 0 else ("plus", f"-{term}")
    return Named(
        "missing_term",
        f"the gradient for {item.name} is the derivative {side} {term}: the term {lacking} is missing (or {term} too "
        "much)",
        {"term": term, "constant": gap.factor},
        f"look for the part of the product rule that gives {lacking}",
    )


Tensors = list[tuple[str, torch.Tensor]]


def _operands(item: Difference) -> Tensors:
    """All tensors at hand but the incoming gradients."""
    evidence = item.evidence
    several = len(evidence.outputs) > 1
    found = [(other.name, other.value) for other in evidence.pairs if other is not item.pair]
    found.append((item.name, item.pair.value))
    found += [(f"output {i}" if several else "output", output) for i, output in enumerate(evidence.outputs)]
    return [(name, values) for name, values in found if values.is_floating_point()][:5]


def _incoming(item: Difference) -> Tensors:
    several = len(item.evidence.cotangents) > 1
    return [
        (f"grad_output {i}" if several else "grad_output", g)
        for i, g in enumerate(item.evidence.cotangents)
        if g.is_floating_point()
    ][:2]


def _matrix_products(item: Difference, found: _Candidates) -> None:
    if len(item.shape) < 2:
        return
    incoming = _incoming(item)
    for g_name, g in incoming[:1]:
        incoming = [*incoming, (_ONES, torch.ones_like(g))]
        for name, values in _operands(item):
            incoming += [(f"({g_name} · {name})", values * put) for put in spreads(g, tuple(values.shape))]
    for g_name, g in incoming:
        for name, values in [*_operands(item), *_weights(item)]:
            if g.dim() < 2 or values.dim() < 2:
                continue
            for left, right in (((g_name, g), (name, values)), ((name, values), (g_name, g))):
                for first in _either_way(*left):
                    for second in _either_way(*right):
                        product = _multiplied(first[1], second[1], item.shape)
                        if product is not None:
                            found.add(f"{first[0]} @ {second[0]}", product)
            if len(found.names) >= _MOST_PRODUCTS:
                return


def _triple_products(item: Difference, found: _Candidates) -> None:
    """(first @ second) @ third: what attention and bilinear forms make, with and without a transpose."""
    if len(item.shape) < 2 or item.analytic.numel() > _FEW:
        return
    operands = [form for name, values in _operands(item) if values.dim() >= 2 for form in _either_way(name, values)]
    for g_name, g in _incoming(item):
        if g.dim() < 2:
            continue
        forms = _either_way(g_name, g)
        for one in operands:
            for two in operands:
                for g_form in forms:
                    for first, second, third in ((g_form, one, two), (one, g_form, two), (one, two, g_form)):
                        if first[1].shape[-1] != second[1].shape[-2] or first[1].shape[-2] != item.shape[-2]:
                            continue
                        inner = _multiplied(first[1], second[1], None)
                        product = None if inner is None else _multiplied(inner, third[1], item.shape)
                        if product is not None:
                            found.add(f"({first[0]} @ {second[0]}) @ {third[0]}", product)
                        if len(found.names) >= _MOST_PRODUCTS:
                            return


def _weights(item: Difference) -> Tensors:
    """Attention weights that can be made of two of the inputs."""
    found: Tensors = []
    pairs = [pair for pair in item.evidence.pairs if pair.value.dim() >= 2 and pair.value.is_floating_point()][:3]
    for place, one in enumerate(pairs):
        for two in pairs[place + 1 :]:
            scores = _multiplied(one.value, two.value.mT, None)
            if scores is not None:
                weights = (scores * one.value.shape[-1] ** -0.5).softmax(-1)
                found.append((f"softmax({one.name} @ {two.name}ᵀ / root of d)", weights))
    return found


def _either_way(name: str, values: torch.Tensor) -> Tensors:
    return [(name, values), (f"{name}ᵀ", values.mT)]


def _multiplied(first: torch.Tensor, second: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor | None:
    """The product, summed over leading axes to `shape` (None: as it is); None where the shapes don't go together."""
    if first.shape[-1] != second.shape[-2]:
        return None
    if shape is not None and (first.shape[-2], second.shape[-1]) != shape[-2:]:
        return None
    try:
        product = first @ second
    except RuntimeError:  # leading axes that don't go together
        return None
    if shape is None:
        return product
    if product.dim() > len(shape):
        product = product.sum(tuple(range(product.dim() - len(shape))))
    return product if tuple(product.shape) == shape else None


_CONVOLUTIONS: Final = {
    3: (functional.conv1d, functional.conv_transpose1d),
    4: (functional.conv2d, functional.conv_transpose2d),
    5: (functional.conv3d, functional.conv_transpose3d),
}


def _convolutions(item: Difference, found: _Candidates) -> None:
    """Gradients for the input of a convolution of stride 1, with the kernel one way or the other."""
    axes = len(item.shape)
    if axes not in _CONVOLUTIONS:
        return
    convolve, transposed = _CONVOLUTIONS[axes]
    for g_name, g in _incoming(item):
        for other in item.evidence.pairs:
            kernel = other.value
            if other is item.pair or kernel.dim() != axes or g.dim() != axes or not kernel.is_floating_point():
                continue
            total = [o - s + k - 1 for o, s, k in zip(g.shape[2:], item.shape[2:], kernel.shape[2:], strict=True)]
            if any(pad < 0 or pad % 2 for pad in total):
                continue
            padding = tuple(pad // 2 for pad in total)
            inner = tuple(k - 1 - pad for k, pad in zip(kernel.shape[2:], padding, strict=True))
            ways = [("", kernel)]
            if kernel.shape[0] == kernel.shape[1]:
                ways.append((" with its channels exchanged", kernel.transpose(0, 1)))
            for said, weight in ways:
                if weight.shape[0] != g.shape[1] or weight.shape[1] != item.shape[1]:
                    continue
                name = f"{other.name}{said}"
                found.add(f"the transposed convolution of {g_name} with {name}", transposed(g, weight, padding=padding))
                if all(pad >= 0 for pad in inner):
                    turned = convolve(g, weight.transpose(0, 1), padding=inner)
                    found.add(f"the convolution of {g_name} with {name}, not turned round,", turned)


def _terms(item: Difference, shape: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Factors of the incoming gradient in a reduction, for each element of the output's shape."""
    yield "", torch.ones(shape, dtype=torch.float64)
    aligned = [(name, values) for name, tensor in _operands(item) for values in spreads(tensor, shape)][:4]
    yield from aligned
    for name, values in aligned:
        yield f"{name}²", values * values
        yield f"|{name}|", values.abs()
        yield f"(1 - {name})", 1 - values
        yield f"1 / {name}", 1 / values
        yield f"min({name}, 0)", values.clamp_max(0)
        yield f"max({name}, 0)", values.clamp_min(0)
    for one in range(len(aligned)):
        for two in range(one + 1, len(aligned)):
            yield f"{aligned[one][0]} · {aligned[two][0]}", aligned[one][1] * aligned[two][1]
            yield f"({aligned[one][0]} - {aligned[two][0]})", aligned[one][1] - aligned[two][1]
    for name, values in aligned:
        # A parameter that is broadcast is no data to normalise.
        if 0 in values.stride():
            continue
        for axes in axis_sets(shape)[:3]:
            over = axes_words(axes, shape)
            centred = values - values.mean(axes, keepdim=True)
            squares = (values * values).mean(axes, keepdim=True)
            yield f"({name} - its mean over {over})", centred
            yield f"normalised {name} over {over}", centred / (centred * centred).mean(axes, keepdim=True).sqrt()
            yield f"{name} / its root mean square over {over}", values / squares.sqrt()


def _reduced(item: Difference, found: _Candidates) -> None:
    """Sums over the axes that a parameter is broadcast along, and what is taken for them."""
    for g_name, g in _incoming(item):
        shape = tuple(g.shape)
        if g.numel() <= item.analytic.numel() or g.numel() > _LARGEST:
            continue
        kept_sets = _kept(shape, item.shape)
        if not kept_sets:
            continue
        names, tensors = [], []
        for term, values in _terms(item, shape):
            names.append(f"{g_name} · {term}" if term else g_name)
            tensors.append(values)
            if len(tensors) * g.numel() > _MOST_TERMS:
                break
        factors = torch.stack([values.expand(shape) for values in tensors])
        products = factors * g
        for kept in kept_sets:
            gone = tuple(axis for axis in range(len(shape)) if axis not in kept)
            _reduce(found, names, products, gone, shape)
            # As if what comes in were all ones.
            found.names += [f"the sum over {axes_words(gone, shape)} of {_ONES}{name[len(g_name) :]}" for name in names]
            found.rows.append(factors.sum([axis + 1 for axis in gone]).reshape(len(names), -1))


def _reduce(
    found: _Candidates, names: list[str], products: torch.Tensor, gone: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    over = axes_words(gone, shape)
    axes = [axis + 1 for axis in gone]
    count = len(names)
    found.names += [f"the sum over {over} of {name}" for name in names]
    found.rows.append(products.sum(axes).reshape(count, -1))
    for index, which in ((0, "first"), (-1, "last")):
        picked = products.select(axes[0], index)
        rest = [axis - 1 for axis in axes[1:]]
        said = f"the {which} slice of axis {gone[0]}" + (
            f", summed over {axes_words(gone[1:], shape)}," if len(gone) > 1 else ""
        )
        found.names += [f"{said} of {name}" for name in names]
        found.rows.append((picked.sum(rest) if rest else picked).reshape(count, -1))
    found.names += [f"the largest over {over} of {name}" for name in names]
    found.rows.append(products.amax(axes).reshape(count, -1))


def _kept(shape: tuple[int, ...], to: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of `shape` that a tensor of shape `to` may have kept: by broadcasting, or by equal length."""
    count = len(shape)
    long = tuple(length for length in to if length > 1)
    found: list[tuple[int, ...]] = []
    if len(to) <= count:
        trailing = range(count - len(to), count)
        found.append(tuple(axis for axis, length in zip(trailing, to, strict=True) if length > 1))
    if len(long) == 1:
        found += [(axis,) for axis in range(count) if shape[axis] == long[0]]
    return [kept for kept in dict.fromkeys(found) if len(kept) < count and tuple(shape[axis] for axis in kept) == long]


def _scans(item: Difference, found: _Candidates) -> None:
    """Running sums from either end, with and without the element itself."""
    shape = item.shape
    for g_name, tensor in _incoming(item):
        for g in spreads(tensor, shape):
            names, factors = zip(*_short_terms(item, shape), strict=True)
            products = torch.stack(factors) * g
            said = [f"{g_name} · {name}" if name else g_name for name in names]
            for axis in range(len(shape)):
                if shape[axis] < 3:
                    continue
                sums = products.cumsum(axis + 1)
                total = sums.select(axis + 1, -1).unsqueeze(axis + 1)
                for form, values in (
                    ("the running sum", sums),
                    ("the running sum from the end", total - sums + products),
                    ("the running sum, itself left out,", sums - products),
                    ("the running sum from the end, itself left out,", total - sums),
                    ("the sum", total.expand_as(sums)),
                ):
                    found.names += [f"{form} along axis {axis} of {name}" for name in said]
                    found.rows.append(values.reshape(len(said), -1))


def _short_terms(item: Difference, shape: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    yield "", torch.ones(shape, dtype=torch.float64)
    for name, tensor in _operands(item)[:3]:
        for values in spreads(tensor, shape):
            yield name, values
