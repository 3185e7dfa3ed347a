"""A gradient that is right in some places and wrong in others: which places, said as briefly as possible.

First by position (one element, the tail, a block, every second, below the diagonal), then by value (where x is
negative, exactly zero, beyond a threshold). What is wrong *in* those places is asked of the rules for whole gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.gradients.naming import whole, words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.shapes import spread

# A threshold that separates k wrong elements of n is an accident with probability about n / C(n, k): less than 1/64.
_BITS: Final = 6.0
_LISTED: Final = 5
# Beyond this part of wrong elements, a formula that holds everywhere is looked for first.
_MOST: Final = 0.6
_DERIVATIVE: Final = "the derivative"
_PERIODS: Final = (2, 3, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class _Places:
    cause: str
    said: str  # "from element 6 of axis 1 on", "where x < 0"
    numbers: dict[str, Any]
    hint: str


def local(item: Difference) -> Named | None:
    """Wrong in places that can be described, or in few; most of what can be told is right."""
    return _local(item, _MOST)


def mostly_wrong(item: Difference) -> Named | None:
    """The same with few that are right."""
    return _local(item, 1.0)


def _local(item: Difference, most: float) -> Named | None:
    right = item.telling & ~item.wrong
    if not item.is_wrong or not bool(right.any()):
        return None
    count, total = int(item.wrong.sum()), int(item.wrong.sum() + right.sum())
    if count > most * total:
        return None
    found = _exact_value(item, right)
    if found is None and count > 2:
        # Values made to lie around a number take turns: their positions are as regular as their sizes.
        placed_by_value = item.evidence.situation.values.kind == "around"
        found = (
            ((_by_value(item, right) or _about(item, right)) if placed_by_value else None)
            or _by_position(item, right)
            or _one_a_slice(item)
            or _by_value(item, right)
        )
    if found is None and item.evidence.situation.values.kind == "around":
        found = _about(item, right)
    if found is None and count <= 2:
        found = _single(item)
    if found is None and count * 4 <= total:
        found = _listed(item)
    if found is None:
        return None
    inside = item.within(item.mask(item.wrong))
    pattern, inner_hint = _pattern(inside)
    numbers = {"wrong_elements": count, "compared": total, **found.numbers}
    hint = found.hint if not inner_hint else f"{found.hint}; {inner_hint}"
    return Named(
        found.cause,
        f"the gradient for {item.name} is wrong {found.said} ({count} of {total} elements){pattern}",
        numbers,
        hint,
    )


def _pattern(inside: Difference) -> tuple[str, str]:
    """What is wrong in the places, to go on with: ": there it is zero"."""
    if whole.missing(inside):
        return ": there it is zero", ""
    if whole.no_dependence(inside):
        return ": there the derivative is zero", ""
    factor = whole.constant_ratio(inside)
    if factor is not None:
        named = whole.scaled(inside, factor)
        if named.cause == "wrong_sign":
            return ": there it has the wrong sign", ""
        said = named.numbers.get("meaning") or ""
        said = f" ({said})" if said not in {"", "2", "3", "4"} else ""
        return f": there it is {words.number(factor.real)} times the derivative{said}", ""
    values = inside.a
    if values.numel() > 2 and bool((values.abs() - values.abs()[0]).abs().max() <= 1e-9 * max(inside.scale, 1e-300)):
        bound = float(values.abs()[0])
        if bool((inside.r.abs() > bound * (1 - 1e-9)).all()):
            return f": there it is cut to ±{words.number(bound)}", "look for a clamp"
    worst = inside.worst()
    returned, derivative = inside.analytic[worst].item(), inside.reference[worst].item()
    return f": at {words.place(worst)} {words.number(returned)} instead of {words.number(derivative)}", ""


def scattered(item: Difference) -> Named | None:
    """Wrong in places that can't be described, but in one way: a sign, a factor, zeros."""
    right = item.telling & ~item.wrong
    if not item.is_wrong or not bool(right.any()):
        return None
    inside = item.within(item.mask(item.wrong))
    named = whole.missing(inside) or whole.ratio(inside)
    if named is None:
        return None
    count, total = int(item.wrong.sum()), int(item.wrong.sum() + right.sum())
    return Named(
        named.cause,
        f"at {count} of {total} elements {named.text} ({_enumerated(item)})",
        {**named.numbers, "wrong_elements": count, "compared": total},
        f"look for what tells these elements from the others, a mask or a target; {named.hint}",
    )


# By position


def _single(item: Difference) -> _Places | None:
    places = _indices(item)
    first, last = (0,) * len(item.shape), tuple(length - 1 for length in item.shape)
    if len(places) == 1 and places[0] in {first, last} and item.analytic.numel() > 2:
        which = "first" if places[0] == first else "last"
        return _Places(
            "wrong_coordinates",
            f"at the {which} element, {words.place(places[0])}",
            {"indices": [list(places[0])]},
            f"look for an index or a bound that leaves out the {which} element",
        )
    return _listed(item)


def _listed(item: Difference) -> _Places:
    return _Places(
        "wrong_coordinates",
        f"at {_enumerated(item)}",
        {"indices": [list(place) for place in _indices(item)[:_LISTED]]},
        "look for an index, a mask or an indexed write that touches these elements",
    )


def _enumerated(item: Difference) -> str:
    places = _indices(item)
    return ", ".join(words.place(place) for place in places[:_LISTED]) + (" …" if len(places) > _LISTED else "")


def _one_a_slice(item: Difference) -> _Places | None:
    axis = _one_in_each_slice(item)
    if axis is None:
        return None
    height = _equal_steps(item)
    if height is not None:
        return _Places(
            "missing_term",
            f"by {height} at exactly one element of each slice along axis {axis}, {_enumerated(item)}",
            {"axis": axis, "indices": [list(place) for place in _indices(item)[:_LISTED]]},
            "look for the one-hot term: what is subtracted, or added, at the element that an index picks",
        )
    return _Places(
        "wrong_coordinates",
        f"at exactly one element of each slice along axis {axis}, {_enumerated(item)}",
        {"axis": axis, "indices": [list(place) for place in _indices(item)[:_LISTED]]},
        "what an index picks (a target class, a maximum) is handled differently: look for the one-hot term",
    )


def _equal_steps(item: Difference) -> str | None:
    """The difference at the picked elements, if it is one number, or one number times the incoming gradient."""
    gaps = (item.analytic - item.reference)[item.mask(item.wrong)]
    for name, values in [("", torch.ones_like(item.reference)), *_others(item)]:
        aligned = spread(values, item.shape) if not name or "incoming" in name else None
        if aligned is None or aligned.is_complex():
            continue
        quotients = gaps / aligned[item.mask(item.wrong)]
        if bool(((quotients - quotients[0]).abs() <= 1e-8 * quotients[0].abs()).all()):
            return words.number(float(quotients[0])) + (f" · {name}" if name else "")
    return None


def _one_in_each_slice(item: Difference) -> int | None:
    if not item.complete:
        return None
    wrong = item.wrong.reshape(item.shape)
    for axis in reversed(range(len(item.shape))):
        if item.shape[axis] > 2 and wrong.numel() // item.shape[axis] > 2 and bool((wrong.sum(axis) == 1).all()):
            return axis
    return None


def _indices(item: Difference) -> list[tuple[int, ...]]:
    found = item.mask(item.wrong).reshape(-1).nonzero().reshape(-1)[:10_000]
    return [item.index(int(flat)) for flat in found]


def _by_position(item: Difference, right: torch.Tensor) -> _Places | None:
    wrong_mask, right_mask = item.mask(item.wrong), item.mask(right)
    axes = len(item.shape)
    for axis in range(axes):
        if item.shape[axis] > 1:
            others = [other for other in range(axes) if other != axis]
            wrong = _any(wrong_mask, others)
            kept = _any(right_mask, others)
            if not bool((wrong & kept).any()):
                found = _along(wrong, kept, axis, item.shape)
                if found is not None:
                    return found
    flat = wrong_mask.reshape(-1), right_mask.reshape(-1)
    found = _flat_tail(*flat, axes)
    if found is None and axes > 1:
        found = _diagonal(wrong_mask, right_mask, item.shape) or _box(wrong_mask, right_mask, item.shape)
    return found or _flat(*flat, axes)


def _any(mask: torch.Tensor, axes: list[int]) -> torch.Tensor:
    # torch 2.4's `any` takes one axis only on some devices: sums work everywhere.
    return mask.sum(axes) > 0 if axes else mask


def _along(wrong: torch.Tensor, right: torch.Tensor, axis: int, shape: tuple[int, ...]) -> _Places | None:
    """Wrong for some indices of one axis, whatever the other axes say."""
    length = shape[axis]
    bad = wrong.nonzero().reshape(-1).tolist()
    good = right.nonzero().reshape(-1).tolist()
    on = f"of {words.axis_words(axis, shape)}"
    numbers: dict[str, Any] = {"axis": axis}
    if len(bad) == 1 and len(good) >= 1:
        index = bad[0]
        which = {0: "in the first slice", length - 1: "in the last slice"}.get(index, "at one index")
        whose = f"{which} {on}, index {index}" if len(shape) > 1 else f"at index {index}"
        cause = "wrong_tail" if index == length - 1 else "wrong_block"
        hint = {
            0: "look for what is taken from, or written to, the first index only",
            length - 1: "look for a bound that ends one too early, or the remainder of a block",
        }.get(index, "look for a constant index")
        return _Places(cause, whose, {**numbers, "from": index, "to": index + 1}, hint)
    if min(bad) > max(good):
        # A sampled reference may not know where exactly it starts.
        start = min(bad)
        return _Places(
            "wrong_tail",
            f"from index {start} {on} on",
            {**numbers, "from": start, "right_until": max(good)},
            "look for the remainder of a block or a loop: a size that isn't a multiple of it, a mask of the tail",
        )
    if max(bad) < min(good):
        return _Places(
            "wrong_block",
            f"up to index {max(bad)} {on}",
            {**numbers, "from": 0, "to": max(bad) + 1},
            "look for a slice, a chunk or a loop that starts too late",
        )
    for period in _PERIODS:
        rests = {index % period for index in bad}
        if len(rests) == 1 and len(bad) > 1 and not any(index % period in rests for index in good) and period < length:
            every = "every second index" if period == 2 else f"one in {period} indices"
            rest = rests.pop()
            return _Places(
                "wrong_coordinates",
                f"at {every} {on} ({rest}, {rest + period}, …)",
                {**numbers, "period": period, "first": rest},
                "look for a stride, a step or an interleaving that is taken for another",
            )
    between = [index for index in good if min(bad) < index < max(bad)]
    if not between:
        return _Places(
            "wrong_block",
            f"from index {min(bad)} to {max(bad)} {on}",
            {**numbers, "from": min(bad), "to": max(bad) + 1},
            "look for a slice, a chunk or a head that is handled on its own",
        )
    if len(bad) <= max(2, length // 2) and len(shape) > 1:
        return _Places(
            "wrong_block",
            f"at indices {', '.join(map(str, bad[:_LISTED]))}{' …' if len(bad) > _LISTED else ''} {on}",
            {**numbers, "indices": bad[:_LISTED]},
            "look for what tells these slices from the others: a mask, a length, a zero or equal row",
        )
    return None


def _diagonal(wrong: torch.Tensor, right: torch.Tensor, shape: tuple[int, ...]) -> _Places | None:
    rows, columns = shape[-2:]
    if min(rows, columns) < 3:
        return None
    # (column - row) of each element, counted: at most rows + columns different ones.
    offset = torch.arange(columns) - torch.arange(rows)[:, None]
    bad, good = offset.expand(shape)[wrong.cpu()], offset.expand(shape)[right.cpu()]
    low, high = int(bad.min()), int(bad.max())
    hint = "look for `tril`, `triu`, a causal mask, or a product that is taken for symmetric"
    if low == high == 0 and not bool((good == 0).any()):
        return _Places(
            "wrong_block", "on the diagonal", {"offset": 0}, "look for `diagonal`, `eye` or a symmetric part"
        )
    if low > int(good.max()):
        return _Places("wrong_block", f"above the diagonal (column - row >= {low})", {"from": low}, hint)
    if high < int(good.min()):
        return _Places("wrong_block", f"below the diagonal (column - row <= {high})", {"to": high}, hint)
    return None


def _box(wrong: torch.Tensor, right: torch.Tensor, shape: tuple[int, ...]) -> _Places | None:
    found = wrong.nonzero()
    low, high = found.min(0).values.tolist(), found.max(0).values.tolist()
    inside = right[tuple(slice(a, b + 1) for a, b in zip(low, high, strict=True))]
    whole_axes = [a == 0 and b == n - 1 for a, b, n in zip(low, high, shape, strict=True)]
    if bool(inside.any()) or all(whole_axes):
        return None
    said = ", ".join(
        ":" if everything else (f"{a}" if a == b else f"{a}:{b + 1}")
        for a, b, everything in zip(low, high, whole_axes, strict=True)
    )
    return _Places(
        "wrong_block",
        f"in the block [{said}]",
        {"low": low, "high": [b + 1 for b in high]},
        "look for a slice, a tile or a border that is handled on its own",
    )


def _flat_tail(wrong: torch.Tensor, right: torch.Tensor, axes: int) -> _Places | None:
    low, last_right = int(wrong.nonzero().min()), int(right.nonzero().max())
    if low <= last_right:
        return None
    return _Places(
        "wrong_tail",
        f"from element {low} on{' (counted flat)' if axes > 1 else ''}",
        {"from": low, "right_until": last_right},
        "look for the remainder of a block or a loop: a size that isn't a multiple of it, a mask of the tail",
    )


def _flat(wrong: torch.Tensor, right: torch.Tensor, axes: int) -> _Places | None:
    bad, good = wrong.nonzero().reshape(-1), right.nonzero().reshape(-1)
    low, high = int(bad.min()), int(bad.max())
    if high < int(good.min()):
        return _Places(
            "wrong_block",
            f"up to element {high}{' (counted flat)' if axes > 1 else ''}",
            {"from": 0, "to": high + 1},
            "look for a slice, a chunk or a loop that starts too late",
        )
    if not bool(((good > low) & (good < high)).any()):
        return _Places(
            "wrong_block",
            f"from element {low} to {high}{' (counted flat)' if axes > 1 else ''}",
            {"from": low, "to": high + 1},
            "look for a slice or a block that is handled on its own",
        )
    for period in _PERIODS:
        rest = low % period
        if bool((bad % period == rest).all()) and not bool((good % period == rest).any()):
            every = "every second element" if period == 2 else f"one element in {period}"
            return _Places(
                "wrong_coordinates",
                f"at {every} ({rest}, {rest + period}, … counted flat)",
                {"period": period, "first": rest},
                "look for a stride, a step or an interleaving that is taken for another",
            )
    return None


# By value


def _features(item: Difference) -> Iterator[tuple[str, torch.Tensor]]:
    """Named values, one for each element of the pair, that a wrong element may be told by."""
    shape = item.shape
    for name, values in [(item.name, item.pair.value), *_others(item)]:
        if tuple(values.shape) != shape:
            values = spread(values, shape)  # noqa: PLW2901
            if values is None:
                continue
        if values.is_complex():
            yield f"|{name}|", values.abs()
            yield f"the real part of {name}", values.real
        else:
            yield name, values
            yield f"|{name}|", values.abs()


def _others(item: Difference) -> Iterator[tuple[str, torch.Tensor]]:
    evidence = item.evidence
    several = len(evidence.outputs) > 1
    for place, output in enumerate(evidence.outputs):
        if output.is_floating_point() or output.is_complex():
            yield (f"output {place}" if several else "the output"), output
    for place, cotangent in enumerate(evidence.cotangents):
        yield (f"the incoming gradient of output {place}" if several else "the incoming gradient"), cotangent
    for other in evidence.pairs:
        if other is not item.pair:
            yield other.name, other.value
            if tuple(other.value.shape) == item.shape:
                yield f"{item.name} - {other.name}", item.pair.value - other.value
    yield _DERIVATIVE, item.reference


def _exact_value(item: Difference, right: torch.Tensor) -> _Places | None:
    """Wrong exactly where x is one number: zero, a tie, a bound."""
    # Outputs and incoming gradients are equal in many places at once: a bound of the input tells more.
    inputs = {pair.name for pair in item.evidence.pairs}
    for name, values in _features(item):
        if name not in inputs:
            continue
        flat = item.pick(values)
        bad = flat[item.wrong]
        first = bad[0]
        if not bool((bad == first).all()) or bool((flat[right] == first).any()):
            continue
        value = float(first)
        if bad.numel() > 1 or value == 0:
            return _Places(
                "wrong_region",
                f"where {name} is exactly {words.number(value)}",
                {"where": f"{name} == {words.number(value)}", "threshold": value, "bracket": [value, value]},
                f"look for a comparison with {words.number(value)} (`>` or `>=`, `sign`, a mask), or a quotient 0 / 0",
            )
    return None


def _by_value(item: Difference, right: torch.Tensor) -> _Places | None:
    count, kept = int(item.wrong.sum()), int(right.sum())
    if _surprise(count + kept, count) < math.log2(count + kept) + _BITS:
        return None
    for name, values in _features(item):
        flat = item.pick(values)
        bad, good = flat[item.wrong], flat[right]
        low, high = float(bad.min()), float(bad.max())
        # Where the derivative itself is beyond a bound, it was cut there; otherwise the bound says nothing.
        if name.endswith(_DERIVATIVE) or name == f"|{_DERIVATIVE}|":
            cut = item.a[item.wrong].abs()
            if float(cut.max() - cut.min()) > 1e-9 * item.scale:
                continue
        for sign, bracket in (("<", (high, float(good.min()))), (">", (float(good.max()), low))):
            if bracket[0] < bracket[1]:
                return _threshold(name, sign, bracket)
        inner = good[(good > low) & (good < high)]
        if not inner.numel() and name[0] != "|" and low < high and not name.endswith(_DERIVATIVE):
            below, above = good[good < low], good[good > high]
            if below.numel() and above.numel():
                edges = [float(below.max()), low, high, float(above.min())]
                return _Places(
                    "wrong_region",
                    f"where {name} is between {words.number(_simplest(edges[0], edges[1]))} and "
                    f"{words.number(_simplest(edges[2], edges[3]))}",
                    {"where": f"{name} within", "bracket": edges},
                    f"look for a comparison of {name}: one of the pieces has a wrong derivative",
                )
    return None


def _about(item: Difference, right: torch.Tensor) -> _Places | None:
    """On one side of the number that the values were made to lie around: few elements are enough to tell."""
    number = item.evidence.situation.values.number
    for name, values in _features(item):
        flat = item.pick(values)
        bad, good = flat[item.wrong], flat[right]
        for sign, inside in (("<", torch.lt), (">", torch.gt), ("<=", torch.le), (">=", torch.ge)):
            if bool(inside(bad, number).all()) and not bool(inside(good, number).any()):
                return _Places(
                    "wrong_region",
                    f"where {name} {sign} {words.number(number)}",
                    {"where": f"{name} {sign} {words.number(number)}", "threshold": number},
                    f"look for the branch, mask or clamp that compares {name} with {words.number(number)}",
                )
    return None


def _threshold(name: str, sign: str, bracket: tuple[float, float]) -> _Places:
    value = _simplest(*bracket)
    cause = "clipped" if name in {_DERIVATIVE, f"|{_DERIVATIVE}|"} else "wrong_region"
    hint = f"look for the branch, mask or clamp that compares {name} with a number near {words.number(value)}"
    if "incoming gradient" in name:
        hint = "backward cuts or compares the incoming gradient: a gradient must be linear in it"
    return _Places(
        cause,
        f"where {name} {sign} {words.number(value)} (the bound lies between {words.number(bracket[0])} and "
        f"{words.number(bracket[1])})",
        {"where": f"{name} {sign} {words.number(value)}", "threshold": value, "bracket": list(bracket)},
        hint,
    )


def _simplest(low: float, high: float) -> float:
    """The number with the fewest digits from `low` to `high`: zero, else one, two … decimals."""
    if low <= 0 <= high:
        return 0.0
    size = max(abs(low), abs(high))
    for digits in range(-math.floor(math.log10(size)) - 1, 17):
        middle = round((low + high) / 2, digits)
        for candidate in (middle, round(low, digits), round(high, digits)):
            if low <= candidate <= high:
                return candidate
    return (low + high) / 2


def _surprise(total: int, chosen: int) -> float:
    """log2 of the number of ways to choose: how unlikely it is that a simple description fits by chance."""
    return (math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)) / math.log(2)
