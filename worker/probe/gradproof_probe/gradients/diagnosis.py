"""From analytic and numeric values at some coordinates to the name of the slip that makes the one of the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

# Ratios of two numbers that agree to this are one number: numeric values are good to 1e-7 or better.
SAME: Final = 1e-4
ZERO: Final = 1e-9  # relative to the largest value at hand


@dataclass(slots=True)
class Comparison:
    """One variable: flat coordinates that were compared, with both values, and the errors of the numeric ones."""

    name: str
    shape: tuple[int, ...]
    indices: list[int]
    analytic: list[float]
    numeric: list[float]
    error: list[float]
    complete: bool
    kind: str = "input"
    ordinal: int = 0

    def bad(self) -> list[int]:
        """Positions in the lists where the values differ beyond the error."""
        scale = self.scale
        return [
            position
            for position, (a, n, e) in enumerate(zip(self.analytic, self.numeric, self.error, strict=True))
            if abs(a - n) > 10 * e + 1e-6 * max(abs(a), abs(n)) + 1e-9 * scale
        ]

    @property
    def scale(self) -> float:
        return max((abs(value) for value in [*self.analytic, *self.numeric]), default=0.0)

    def worst(self) -> dict[str, Any]:
        position = max(
            range(len(self.indices)), key=lambda i: abs(self.analytic[i] - self.numeric[i]) if self.indices else 0.0
        )
        return {
            "variable": self.name,
            "kind": self.kind,
            "ordinal": self.ordinal,
            "index": unravel(self.indices[position], self.shape),
            "analytic": self.analytic[position],
            "numeric": self.numeric[position],
            "error_estimate": self.error[position],
        }


@dataclass(frozen=True, slots=True)
class Named:
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def unravel(index: int, shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(shape):
        found.append(index % size)
        index //= size
    return found[::-1]


def diagnose(comparisons: Sequence[Comparison]) -> Named:
    """`comparisons`: those variables in which something differs, and the others for swaps."""
    wrong = [item for item in comparisons if item.bad()]
    if not wrong:
        return Named(
            "wrong_gradient", "the gradient differs along random directions, at no single coordinate looked at"
        )
    swap = _swapped(comparisons, wrong)
    if swap is not None:
        return swap
    first = max(wrong, key=_difference)
    for rule in (_zero, _constant_numeric, _ratio, _transposed, _flipped, _local, _offset):
        named = rule(first)
        if named is not None:
            return named
    worst = first.worst()
    return Named(
        "wrong_gradient",
        f"the gradient for {first.name} is wrong, most at {worst['index']}: {_number(worst['analytic'])} returned, "
        f"{_number(worst['numeric'])} by differences",
        {"wrong_coordinates": len(first.bad()), "compared": len(first.indices)},
    )


def _difference(item: Comparison) -> float:
    return max(abs(a - n) for a, n in zip(item.analytic, item.numeric, strict=True))


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _zero(item: Comparison) -> Named | None:
    if all(abs(a) <= ZERO * item.scale for a in item.analytic):
        return Named("missing_gradient", f"the gradient for {item.name} is zero, though the output depends on it")
    return None


def _constant_numeric(item: Comparison) -> Named | None:
    if all(abs(n) <= ZERO * item.scale + 10 * e for n, e in zip(item.numeric, item.error, strict=True)):
        return Named("surrogate", f"the output doesn't change with {item.name}, but it gets a gradient")
    return None


def _ratio(item: Comparison) -> Named | None:
    ratios = [
        a / n
        for a, n, e in zip(item.analytic, item.numeric, item.error, strict=True)
        if abs(n) > 1e-6 * item.scale and e < 1e-5 * abs(n)
    ]
    if len(ratios) < min(2, len(item.indices)) or not ratios:
        return None
    ratio = sorted(ratios)[len(ratios) // 2]
    if any(abs(value - ratio) > SAME * abs(ratio) for value in ratios) or abs(ratio - 1) < SAME or ratio == 0:
        return None
    numbers = {"ratio": ratio, "coordinates": len(ratios)}
    if abs(ratio + 1) < SAME:
        return Named("wrong_sign", f"the gradient for {item.name} has the wrong sign", numbers)
    meaning = _meaning(ratio, item.shape)
    said = f" ({meaning})" if meaning else ""
    return Named("scaled_gradient", f"the gradient for {item.name} is {ratio:.6g} times the derivative{said}", numbers)


def _meaning(ratio: float, shape: Sequence[int]) -> str:
    size = abs(ratio)
    total = math.prod(shape)
    candidates = [
        (float(length), f"axis {axis} has length {length}") for axis, length in enumerate(shape) if length > 2
    ]
    candidates += [(float(total), f"{total} elements")] if total > 2 and len(shape) > 1 else []
    for value, said in candidates:
        for form, power in ((f"{said}", value), (f"1 / n, {said}", 1 / value)):
            if abs(size - power) < SAME * power:
                return form
        for form, power in ((f"root of n, {said}", value**0.5), (f"1 / root of n, {said}", value**-0.5)):
            # 2 and 1/2 are the commonest slips of all: the root of an axis of length 4 would be a guess.
            if value != 4 and abs(size - power) < SAME * power:
                return form
    return ""


def _full(item: Comparison) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not item.complete or len(item.indices) < 4:
        return None
    return (
        torch.tensor(item.analytic, dtype=torch.float64).reshape(item.shape),
        torch.tensor(item.numeric, dtype=torch.float64).reshape(item.shape),
    )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-5 * b.abs().max())


def _transposed(item: Comparison) -> Named | None:
    full = _full(item)
    if full is None or len(item.shape) < 2:
        return None
    analytic, numeric = full
    if _close(analytic, numeric.transpose(-1, -2)) or _close(analytic, numeric.transpose(-1, -2).reshape(item.shape)):
        return Named("transposed", f"the gradient for {item.name} is the transpose of the derivative")
    return None


def _flipped(item: Comparison) -> Named | None:
    full = _full(item)
    if full is None:
        return None
    analytic, numeric = full
    for axis in range(len(item.shape)):
        if item.shape[axis] > 1 and _close(analytic, numeric.flip(axis)):
            return Named("flipped", f"the gradient for {item.name} is reversed along axis {axis}", {"axis": axis})
    return None


def _local(item: Comparison) -> Named | None:
    bad = item.bad()
    if item.complete and 0 < len(bad) <= max(1, len(item.indices) // 4) and len(item.indices) >= 4:
        places = [unravel(item.indices[position], item.shape) for position in bad[:5]]
        return Named(
            "wrong_coordinates",
            f"the gradient for {item.name} is wrong at {len(bad)} of {len(item.indices)} coordinates: {places}",
            {"wrong_coordinates": len(bad), "compared": len(item.indices)},
        )
    return None


def _offset(item: Comparison) -> Named | None:
    """A term that is the same along an axis is missing or too much: the sum over that axis was forgotten."""
    full = _full(item)
    if full is None:
        return None
    difference = full[0] - full[1]
    for axis in range(len(item.shape)):
        if item.shape[axis] > 1:
            spread = (difference - difference.mean(axis, keepdim=True)).abs().max()
            if float(spread) <= 1e-5 * float(difference.abs().max()):
                return Named(
                    "missing_term",
                    f"the gradient for {item.name} lacks (or has too much) a term that is constant along axis {axis}",
                    {"axis": axis, "term": float(difference.abs().max())},
                )
    return None


def _swapped(comparisons: Sequence[Comparison], wrong: Sequence[Comparison]) -> Named | None:
    for one in wrong:
        for other in comparisons:
            if one is not other and one.shape == other.shape and one.complete and other.complete:
                a = torch.tensor(one.analytic, dtype=torch.float64)
                n = torch.tensor(other.numeric, dtype=torch.float64)
                if len(a) and _close(a, n):
                    return Named(
                        "swapped_gradients", f"the gradient returned for {one.name} is the derivative for {other.name}"
                    )
    return None
