"""Numbers as a person reads them, and what a ratio may mean: an axis, a batch, a root, a constant that was forgotten.

Only arithmetic on sizes and numbers; which gradient has the ratio is the rules' business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from gradproof_probe.gradients.naming.pairs import Evidence, GradientPair

# Two numbers that agree to this are one number. Gradients by differences are good to 1e-7 or better.
_SAME: Final = 1e-6

_CONSTANTS: Final[tuple[tuple[float, str], ...]] = (
    (2.0, "2"),
    (0.5, "1/2"),
    (4.0, "4"),
    (0.25, "1/4"),
    (3.0, "3"),
    (1 / 3, "1/3"),
    (math.sqrt(2), "the root of 2"),
    (math.sqrt(0.5), "1 / the root of 2"),
    (math.pi, "pi"),
    (1 / math.pi, "1 / pi"),
    (2 * math.pi, "2 pi"),
    (1 / (2 * math.pi), "1 / (2 pi)"),
    (math.sqrt(2 * math.pi), "the root of 2 pi"),
    (1 / math.sqrt(2 * math.pi), "1 / the root of 2 pi"),
    (math.sqrt(math.pi), "the root of pi"),
    (1 / math.sqrt(math.pi), "1 / the root of pi"),
    (math.sqrt(math.pi) / 2, "half the root of pi"),
    (2 / math.sqrt(math.pi), "2 / the root of pi"),
    (math.log(2), "the natural logarithm of 2: base 2 and base e"),
    (1 / math.log(2), "1 / the natural logarithm of 2: base 2 and base e"),
    (math.log(10), "the natural logarithm of 10: base 10 and base e"),
    (1 / math.log(10), "1 / the natural logarithm of 10: base 10 and base e"),
    (math.pi / 180, "pi / 180: degrees and radians"),
    (180 / math.pi, "180 / pi: degrees and radians"),
)


def number(value: float | complex) -> str:
    if isinstance(value, complex):
        return f"{value.real:.6g}{value.imag:+.6g}j" if value.imag else f"{value.real:.6g}"
    return f"{value:.6g}"


def same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other))


def place(index: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, index)) + "]" if index else "its only element"


def listing(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(names)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def axis_words(axis: int, shape: Sequence[int]) -> str:
    return f"axis {axis} (of {len(shape)})" if len(shape) > 1 else "its axis"


def meaning(ratio: float, pair: GradientPair, evidence: Evidence, tolerance: float = _SAME) -> str:
    """What a factor may stand for: "2", "1 / n for n = 8, the length of axis 0". Empty if it is no known number."""
    size = abs(ratio)
    if size == 0:
        return ""

    def near(value: float) -> bool:
        return abs(size - value) <= tolerance * value

    # The incoming gradient of a scalar loss is a random number: equal to its inverse, it is no accident.
    for cotangent in evidence.cotangents:
        if cotangent.numel() == 1 and not cotangent.is_complex():
            incoming = abs(float(cotangent))
            if incoming and not same(incoming, 1.0):
                if near(1 / incoming):
                    return "1 / the incoming gradient"
                if near(incoming):
                    return "the incoming gradient"
    for value, said in _CONSTANTS[:2]:
        if near(value):
            return said
    for length, said in _lengths(pair, evidence):
        for value, form in ((length, "n"), (1 / length, "1 / n")):
            if near(value):
                return f"{form} for n = {length}, {said}"
        # 2 and 1/2 are the commonest slips of all: the root of a length of 4 would be a guess.
        for value, form in ((length**0.5, "the root of n"), (length**-0.5, "1 / the root of n")):
            if length != 4 and near(value):
                return f"{form} for n = {length}, {said}"
        for value, form in ((length**2, "n²"), (length**-2, "1 / n²")):
            if near(value):
                return f"{form} for n = {length}, {said}"
        if length > 2:
            for value, form in ((length / (length - 1), "n / (n - 1)"), (1 - 1 / length, "(n - 1) / n")):
                if near(value):
                    return f"{form} for n = {length}, {said}"
        for value, form in ((2 / length, "2 / n"), (length / 2, "n / 2")):
            if length > 4 and near(value):
                return f"{form} for n = {length}, {said}"
    return next((said for value, said in _CONSTANTS[2:] if near(value)), "")


def _lengths(pair: GradientPair, evidence: Evidence) -> list[tuple[int, str]]:
    """Sizes that a gradient may be divided or multiplied by, the likeliest first, each once."""
    shape = tuple(pair.analytic.shape)
    found: dict[int, str] = {}
    for axis, length in enumerate(shape):
        found.setdefault(length, f"the length of axis {axis}")
    if len(shape) > 1:
        found.setdefault(math.prod(shape), "its number of elements")
    for output in evidence.outputs:
        if output.numel() > math.prod(shape) > 0 and output.numel() % math.prod(shape) == 0:
            found.setdefault(output.numel() // math.prod(shape), "the number of outputs that each element goes into")
        for axis, length in enumerate(output.shape):
            found.setdefault(length, f"the length of axis {axis} of the output")
        found.setdefault(output.numel(), "the number of elements of the output")
    for other in evidence.pairs:
        for axis, length in enumerate(other.value.shape):
            found.setdefault(length, f"the length of axis {axis} of {other.name}")
        found.setdefault(other.value.numel(), f"the number of elements of {other.name}")
    for sizes, owner in [(shape, "")] + [(tuple(o.shape), " of the output") for o in evidence.outputs]:
        for first in range(len(sizes)):
            for second in range(first + 1, len(sizes)):
                found.setdefault(sizes[first] * sizes[second], f"the lengths of axes {first} and {second}{owner}")
    return [(length, said) for length, said in found.items() if length > 1]
