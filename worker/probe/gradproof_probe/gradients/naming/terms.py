"""Terms that couple the elements of a row: the mean that softmax and layer norm subtract, a projection, a row's factor.

The derivative of what is normalised along an axis holds a sum over that axis. Forgotten, it leaves a difference that
is constant, or proportional to the input or output, along the axis: with another factor for every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.shapes import axes_words, axis_sets, spreads

_TINY = 1e-10


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Values for each element, and whether they are plain ones."""

    name: str
    values: torch.Tensor


def coupled(item: Difference) -> Named | None:
    """analytic - derivative = (a number for each row) · basis, with basis 1, x, the output, the incoming gradient."""
    if not item.is_wrong or not item.complete or item.r.is_complex() or item.r.numel() < 6:
        return None
    d = item.analytic - item.reference
    bases = _bases(item)
    # The more axes share one number, the more the description explains.
    for axes in sorted(axis_sets(item.shape), key=lambda axes: -len(axes)):
        rows = _rows(d, axes)
        count, length = rows.shape
        stacked = torch.stack([_rows(basis.values, axes) for basis in bases])
        if length >= 3 or (length == 2 and count >= 4):
            for place in _fitting(rows, stacked):
                coefficient = (rows * stacked[place]).sum(1) / (stacked[place] ** 2).sum(1).clamp_min(1e-300)
                if item.explains((rows - coefficient[:, None] * stacked[place]).reshape(-1)):
                    return _say(item, axes, [(bases[place].name, coefficient)])
        if length >= 4:
            centred = rows - rows.mean(1, keepdim=True)
            others = stacked[1:] - stacked[1:].mean(2, keepdim=True)
            for place in _fitting(centred, others):
                coefficient = (centred * others[place]).sum(1) / (others[place] ** 2).sum(1).clamp_min(1e-300)
                if item.explains((centred - coefficient[:, None] * others[place]).reshape(-1)):
                    offset = rows.mean(1) - coefficient * stacked[1 + place].mean(1)
                    return _say(item, axes, [("1", offset), (bases[1 + place].name, coefficient)])
    return None


def _bases(item: Difference) -> list[_Aligned]:
    found = [_Aligned("1", torch.ones_like(item.reference)), _Aligned(item.name, item.pair.value)]
    evidence = item.evidence
    several = len(evidence.outputs) > 1
    for names, tensors in (("output", evidence.outputs), ("grad_output", evidence.cotangents)):
        for place, tensor in enumerate(tensors):
            name = f"{names} {place}" if several else names
            found += [_Aligned(name, values) for values in spreads(tensor, item.shape)]
    for other in evidence.pairs:
        if other is not item.pair:
            found += [_Aligned(other.name, values) for values in spreads(other.value, item.shape)]
    for place, output in enumerate(evidence.outputs):
        if tuple(output.shape) == item.shape and not output.is_complex():
            found.append(_Aligned(f"exp(output{f' {place}' if several else ''})", output.clamp_max(80).exp()))
    return [basis for basis in found if not basis.values.is_complex()][:8]


def _rows(values: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """As a matrix: one row for each index of the other axes."""
    kept = [axis for axis in range(values.dim()) if axis not in axes]
    length = math.prod(values.shape[axis] for axis in axes)
    return values.permute(*kept, *axes).reshape(-1, length)


def _fitting(rows: torch.Tensor, stacked: torch.Tensor) -> list[int]:
    """The bases that explain `rows`, each row with a factor of its own, up to rounding."""
    power = (rows * rows).sum()
    if not float(power):
        return []
    across = (stacked * rows).sum(2)
    norms = (stacked * stacked).sum(2)
    explained = torch.where(norms > 0, across * across / norms.clamp_min(1e-300), torch.zeros_like(norms)).sum(1)
    return ((power - explained) < 1e-9 * power).nonzero().reshape(-1).tolist()


def _say(item: Difference, axes: tuple[int, ...], terms: list[tuple[str, torch.Tensor]]) -> Named:
    over = axes_words(axes, item.shape)
    said = []
    for basis, coefficient in terms:
        source = _coefficient(item, axes, coefficient)
        if basis == "1":
            said.append(f"{source[1]}, constant along {over}" if source else f"a number that is constant along {over}")
        else:
            said.append(f"{basis} · {source[1]}" if source else f"a multiple of {basis} for each slice along {over}")
    direction = _direction(item, axes)
    numbers = {
        "axis": axes[0],
        "axes": list(axes),
        "along": [basis for basis, _ in terms],
        "largest": item.largest,
    }
    what = " and ".join(said)
    bases = [basis for basis, _ in terms]
    if bases == ["1"]:
        look = f"the mean or sum over {over} that forward's {over} couples the elements by"
    elif "1" in bases:
        look = f"the terms of the mean and of the variance over {over}"
    else:
        basis = bases[0]
        look = f"the projection on {basis}: {basis} times a sum over {over} of grad_output times something"
    if direction == "extra":
        return Named(
            "extra_term",
            f"the gradient for {item.name} has too much a term coupling {over}: it differs by {what}",
            numbers,
            f"backward subtracts {look}, which forward doesn't ask for",
        )
    start = "lacks" if direction == "missing" else "lacks (or has too much, or with a wrong factor)"
    return Named(
        "missing_term",
        f"the gradient for {item.name} {start} a term coupling {over}: it differs by {what}",
        numbers,
        f"look for {look}",
    )


def _coefficient(item: Difference, axes: tuple[int, ...], coefficient: torch.Tensor) -> tuple[float, str] | None:
    """What the factors of the rows are: c · sum(grad_output · x), perhaps over a deviation or a norm."""
    if coefficient.numel() < 3:
        return None
    over = axes_words(axes, item.shape)
    bases = _bases(item)
    incoming = [basis for basis in bases if basis.name.startswith("grad_output")]
    others = [basis for basis in bases if not basis.name.startswith("grad_output")]
    incoming.append(_Aligned("derivative", item.reference))
    x = _rows(item.pair.value, axes)
    deviation, norm = x.std(1, unbiased=False), (x * x).sum(1).sqrt()
    divisors = [("", torch.ones_like(deviation))]
    for name, values in (("deviation", deviation), ("norm", norm)):
        divisors += [(f" / {name}{power}", values**n) for power, n in (("", 1), ("²", 2), ("³", 3))]
    for g in incoming:
        for basis in others:
            total = _rows(g.values * basis.values, axes).sum(1)
            for said, divisor in divisors:
                candidate = total / divisor
                size = float((candidate * candidate).sum())
                if not size or not math.isfinite(size):
                    continue
                factor = float((candidate * coefficient).sum()) / size
                if float((coefficient - factor * candidate).abs().max()) <= 1e-7 * float(coefficient.abs().max()):
                    product = g.name if basis.name == "1" else f"{g.name} · {basis.name}"
                    return factor, _sum_words(factor, product, over, said, x.shape[1])
    return None


def _sum_words(factor: float, product: str, over: str, divisor: str, length: int) -> str:
    sign = "-" if factor < 0 else ""
    size = abs(factor)
    if words.same(size, 1.0):
        return f"{sign}sum({product}) over {over}{divisor}"
    if words.same(size, 1 / length):
        return f"{sign}mean({product}) over {over}{divisor}"
    return f"{sign}{words.number(size)} · sum({product}) over {over}{divisor}"


def _direction(item: Difference, axes: tuple[int, ...]) -> str:
    """Whether the term is missing from the gradient or too much in it, where something tells."""
    truth, returned = _invariances(item, item.reference, axes), _invariances(item, item.analytic, axes)
    if truth - returned:
        return "missing"
    return "extra" if returned - truth else ""


def changed_invariance(item: Difference) -> str:
    """ "missing" or "extra", if the derivative and the returned gradient differ in what vanishes over all elements."""
    if not item.complete or item.r.is_complex() or item.r.numel() < 3:
        return ""
    return _direction(item, tuple(range(len(item.shape))))


def _invariances(item: Difference, gradient: torch.Tensor, axes: tuple[int, ...]) -> set[str]:
    """What vanishes along the axes: the sum (a shift of x changes nothing), the product with x (a scale doesn't)."""
    rows, x = _rows(gradient, axes), _rows(item.pair.value, axes)
    limit = max(_TINY, item.floor / max(item.scale, 1e-300))
    size = rows.abs().sum(1).max()
    found = set()
    if float(rows.sum(1).abs().max()) <= limit * float(size):
        found.add("sum")
    product = rows * x
    if float(product.sum(1).abs().max()) <= limit * float(product.abs().sum(1).max()):
        found.add("scale")
    return found


def broken_invariance(item: Difference) -> Named | None:
    """The derivative sums to zero along an axis, or is orthogonal to x, and the returned gradient isn't."""
    if not item.is_wrong or not item.complete or item.r.is_complex() or item.r.numel() < 6:
        return None
    for axes in axis_sets(item.shape):
        length = math.prod(item.shape[axis] for axis in axes)
        if length < 3:
            continue
        truth, returned = _invariances(item, item.reference, axes), _invariances(item, item.analytic, axes)
        lost = truth - returned
        if not lost:
            continue
        over = axes_words(axes, item.shape)
        facts = {"sum": f"sums to zero over {over}", "scale": f"is orthogonal to {item.name} over {over}"}
        looks = {
            "sum": f"the mean or sum over {over} that is subtracted",
            "scale": f"the projection on {item.name}, a sum over {over} of grad_output times {item.name}",
        }
        return Named(
            "missing_term",
            f"the derivative for {item.name} {' and '.join(facts[name] for name in sorted(lost))}, the returned "
            "gradient doesn't: the term that makes it so is missing or wrong",
            {"axis": axes[0], "axes": list(axes), "lost": sorted(lost)},
            f"look for {' and '.join(looks[name] for name in sorted(lost))}",
        )
    return None


def collapsed(item: Difference) -> Named | None:
    """The same number for every element along an axis: what should differ was summed, averaged or taken from one."""
    if not item.is_wrong or not item.complete or item.r.is_complex():
        return None
    for axes in axis_sets(item.shape):
        a, r = _rows(item.analytic, axes), _rows(item.reference, axes)
        if float((a - a[:, :1]).abs().max()) > item.floor + 1e-12 * item.scale:
            continue
        over = axes_words(axes, item.shape)
        for said, values in (
            ("the sum", r.sum(1)),
            ("the mean", r.mean(1)),
            ("the first", r[:, 0]),
            ("the last", r[:, -1]),
            ("the largest", r.amax(1)),
        ):
            if item.explains(a[:, 0] - values):
                return Named(
                    "wrong_reduction",
                    f"the gradient for {item.name} is {said} of the derivative over {over}, the same for every element",
                    {"axis": axes[0], "axes": list(axes), "taken": said},
                    f"look for a reduction over {over} that doesn't belong, or one number that is handed to all",
                )
    return None


def slice_ratios(item: Difference) -> Named | None:
    """Another factor for every index of an axis."""
    if not item.is_wrong or not item.complete or item.r.is_complex():
        return None
    for axis in range(len(item.shape)):
        count = item.shape[axis]
        if count < 2 or item.r.numel() // count < 2:
            continue
        others = tuple(other for other in range(len(item.shape)) if other != axis)
        a, r = _rows(item.analytic, others), _rows(item.reference, others)
        power = (r * r).sum(1)
        factors = (a * r).sum(1) / power.clamp_min(1e-300)
        if bool((power > 0).sum() < 2) or not item.explains((a - factors[:, None] * r).reshape(-1)):
            continue
        told = factors[power > 0]
        index = torch.arange(1, count + 1, dtype=torch.float64)[power > 0]
        said, meaning = _progression(told, index)
        if bool(((told - told[0]).abs() <= 1e-6 * told[0].abs()).all()):
            continue
        if not said and bool(((told - 1).abs() <= 1e-9).any()):
            continue  # some slices are right: that is about places
        low, high = float(told.min()), float(told.max())
        return Named(
            "scaled_gradient",
            f"the gradient for {item.name} is the derivative with another factor for each index of axis {axis}"
            f"{said or f', {words.number(low)} to {words.number(high)}'}",
            {"axis": axis, "ratios": told[:8].tolist(), "meaning": meaning},
            f"look for a factor that varies along axis {axis}: a weight, a count, a norm or a deviation of each slice",
        )
    return None


def _progression(factors: torch.Tensor, index: torch.Tensor) -> tuple[str, str]:
    for values, said in ((index, "the index + 1"), (1 / index, "1 / (the index + 1)")):
        factor = float((factors * values).sum() / (values * values).sum())
        if float((factors - factor * values).abs().max()) <= 1e-7 * float(factors.abs().max()):
            number = "" if words.same(factor, 1.0) else f"{words.number(factor)} · "
            return f", {number}{said}", said
    return "", ""


def mixed(item: Difference) -> Named | None:
    """Both gradients are u minus a mean minus a projection, row by row, with different u: a weight was left out."""
    if not item.is_wrong or not item.complete or item.r.is_complex() or item.r.numel() < 6:
        return None
    sources = _sources(item)
    for axes in axis_sets(item.shape)[:3]:
        x = _rows(item.pair.value, axes)
        if x.shape[1] < 5 or not sources:
            continue
        free = _Free(x)
        made = torch.stack([free.of(_rows(source.values, axes)) for source in sources])
        mine = _source_of(item, free.of(_rows(item.analytic, axes)), made, sources)
        theirs = _source_of(item, free.of(_rows(item.reference, axes)), made, sources)
        if mine is None or theirs is None or mine == theirs:
            continue
        over = axes_words(axes, item.shape)
        return Named(
            "wrong_formula",
            f"the gradient for {item.name} is made of {mine} where {theirs} belongs (both less a mean and a projection "
            f"over {over})",
            {"returned": mine, "derivative": theirs, "axis": axes[0]},
            f"start from {theirs} instead of {mine}",
        )
    return None


def _sources(item: Difference) -> list[_Aligned]:
    bases = _bases(item)
    incoming = [basis for basis in bases if basis.name.startswith("grad_output")]
    others = [basis for basis in bases if not basis.name.startswith(("grad_output", "exp", "1"))]
    found = list(incoming)
    for g in incoming:
        found += [_Aligned(f"{g.name} · {basis.name}", g.values * basis.values) for basis in others]
    return found


class _Free:
    """Takes from each row its part along ones and along x."""

    def __init__(self, x: torch.Tensor) -> None:
        centred = x - x.mean(1, keepdim=True)
        self._along = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-300)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        centred = rows - rows.mean(1, keepdim=True)
        return centred - (centred * self._along).sum(1, keepdim=True) * self._along


def _source_of(item: Difference, rows: torch.Tensor, made: torch.Tensor, sources: list[_Aligned]) -> str | None:
    """The first source that gives `rows`, each row with a factor of its own."""
    power = (made * made).sum(2, keepdim=True)
    factors = (made * rows).sum(2, keepdim=True) / power.clamp_min(1e-300)
    left_over = (rows - factors * made).abs().amax((1, 2))
    limit = item.floor + 1e-8 * item.scale
    return next((source.name for source, rest in zip(sources, left_over.tolist(), strict=True) if rest <= limit), None)
