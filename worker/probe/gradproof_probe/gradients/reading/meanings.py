"""What an expression stands for, as far as it can be told without running it. Data, and arithmetic on it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gradproof_probe.gradients.reading.clue import QuantityKind, Relation

# "shape": all sizes of a tensor. "index": a place within a tensor, from range(n) or argmax.
Kind = QuantityKind | Literal["shape"]
Step = tuple[str, float]


@dataclass(slots=True)
class Known:
    """An object of the running program. `origin`: the variable that held it, by which a counter is recognised."""

    value: Any
    origin: tuple[int, str] | None = None


@dataclass(slots=True)
class Quantity:
    """Something that depends on the inputs: a tensor's values, its size, a flag.

    `steps`: the arithmetic that was done to it since. `moved`: its axes are no more those of the argument.
    """

    kind: Kind
    argument: str = ""
    detail: str = ""
    axis: int | None = None
    steps: tuple[Step, ...] = ()
    derived: bool = False
    moved: bool = False


@dataclass(slots=True)
class Mask:
    """Where a comparison of elements holds. `clues`: the places of what was noted of it."""

    of: Quantity
    relation: Relation
    number: float | None
    clues: tuple[int, ...]


@dataclass(slots=True)
class Many:
    items: tuple[Meaning, ...]


@dataclass(slots=True)
class Rest:
    """`*args`: the parameters from number `start` on."""

    kind: Literal["value", "cotangent"]
    start: int


@dataclass(slots=True)
class Table:
    """A dictionary that is written out: its keys and values."""

    keys: tuple[Meaning, ...]
    values: tuple[Meaning, ...]


@dataclass(slots=True)
class Context:
    """`ctx`."""


@dataclass(slots=True)
class Routine:
    """A nested function or lambda, with the variables around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    around: Any


@dataclass(slots=True)
class Unknown:
    """Nothing is known."""


Meaning = Known | Quantity | Mask | Many | Rest | Table | Context | Routine | Unknown
UNKNOWN: Final = Unknown()
ELEMENTS: Final = frozenset({"value", "cotangent"})
MOST_STEPS: Final = 6


def is_tensor(meaning: Meaning) -> bool:
    return isinstance(meaning, Quantity) and meaning.kind in ELEMENTS


def stepped(quantity: Quantity, name: str, number: float = 0.0) -> Quantity:
    if len(quantity.steps) >= MOST_STEPS:
        return replace(quantity, derived=True)
    return replace(quantity, steps=(*quantity.steps, (name, number)))


def before(steps: Sequence[Step], number: float) -> list[float]:
    """The numbers from which the steps lead to `number`; empty if none does, or if it can't be told."""
    numbers = [number]
    for name, operand in reversed(steps):
        undo = _UNDO.get(name)
        if undo is None:
            return []
        found: list[float] = []
        for item in numbers:
            try:
                found += undo(item, operand)
            except (ValueError, OverflowError, ZeroDivisionError):
                continue
        numbers = [item for item in found if math.isfinite(item)]
    return numbers


def after(steps: Iterable[Step], number: float) -> float | None:
    """The number to which the steps lead from `number`; None if that can't be told."""
    for name, operand in steps:
        act = _DO.get(name)
        try:
            number = act(number, operand) if act is not None else math.nan
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
    return number if isinstance(number, int | float) and math.isfinite(number) else None


def modulus(quantity: Quantity) -> float | None:
    """k, if the last that was done is `% k`."""
    return quantity.steps[-1][1] if quantity.steps and quantity.steps[-1][0] == "mod" else None


def _power(number: float, exponent: float) -> list[float]:
    if exponent == 0:
        return []
    root = abs(number) ** (1 / exponent)
    if exponent % 2 == 0:
        return [root, -root] if number >= 0 else []
    return [math.copysign(root, number)] if exponent == int(exponent) or number >= 0 else []


_UNDO: Final[dict[str, Callable[[float, float], list[float]]]] = {
    "add": lambda y, k: [y - k],
    "rsub": lambda y, k: [k - y],
    "mul": lambda y, k: [y / k],
    "div": lambda y, k: [y * k],
    "rdiv": lambda y, k: [k / y],
    "floordiv": lambda y, k: [y * k, (y + 1) * k - 1],  # the first number that gives it, and the last
    "pow": _power,
    "neg": lambda y, _: [-y],
    "abs": lambda y, _: [y, -y] if y >= 0 else [],
    "square": lambda y, _: _power(y, 2),
    "sqrt": lambda y, _: [y * y],
    "rsqrt": lambda y, _: [1 / (y * y)],
    "reciprocal": lambda y, _: [1 / y],
    "exp": lambda y, _: [math.log(y)],
    "expm1": lambda y, _: [math.log1p(y)],
    "log": lambda y, _: [math.exp(y)],
    "log2": lambda y, _: [2.0**y],
    "log10": lambda y, _: [10.0**y],
    "bit_length": lambda y, _: [2.0**y - 1, 2.0 ** (y - 1)],  # the last number of so many bits, and the first
    "log1p": lambda y, _: [math.expm1(y)],
    "sigmoid": lambda y, _: [math.log(y / (1 - y))],
    "tanh": lambda y, _: [math.atanh(y)],
    "relu": lambda y, _: [y],
    "round": lambda y, _: [y, y - 0.5],
    "floor": lambda y, _: [y],
    "ceil": lambda y, _: [y],
    "int": lambda y, _: [y],
    "len": lambda y, _: [y],
}
_DO: Final[dict[str, Callable[[float, float], float]]] = {
    "add": lambda x, k: x + k,
    "rsub": lambda x, k: k - x,
    "mul": lambda x, k: x * k,
    "div": lambda x, k: x / k,
    "rdiv": lambda x, k: k / x,
    "floordiv": lambda x, k: x // k,
    "mod": lambda x, k: x % k,
    "pow": lambda x, k: x**k,
    "neg": lambda x, _: -x,
    "abs": lambda x, _: abs(x),
    "square": lambda x, _: x * x,
    "sqrt": lambda x, _: math.sqrt(x),
    "exp": lambda x, _: math.exp(x),
    "log": lambda x, _: math.log(x),
    "int": lambda x, _: float(int(x)),
}
INVERTIBLE: Final = frozenset(_UNDO)


def words(text: str) -> tuple[str, ...]:
    """A long list of names, written as one text."""
    return tuple(text.split())
