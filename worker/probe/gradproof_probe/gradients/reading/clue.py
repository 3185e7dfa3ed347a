"""What was read: which quantity the code compares with which number, and where. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

QuantityKind = Literal[
    "numel",
    "size",
    "rank",
    "value",
    "cotangent",
    "stride",
    "contiguous",
    "dtype",
    "requires_grad",
    "argument",
    "flag",
    "count",
    "unknown",
]
Relation = Literal[
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "multiple",  # of `number`
    "power of two",
    "block",  # cut into pieces of `number`
    "bound",  # clamped at `number`
    "asked",  # looked at, or tested for truth
]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a quantity is compared with where that is no constant: an argument, or a size of one.

    `steps`: the arithmetic between the argument and what is compared. `own_steps`: that on the quantity's side.
    """

    argument: str
    axis: int | None = None
    steps: tuple[tuple[str, float], ...] = ()
    own_steps: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Clue:
    """One predicate: what quantity is compared with what, where.

    `detail`: the flag ("autocast", "deterministic", "grad_enabled", …), the dtype, the reduction ("sum", "norm"), or
    what holds for the whole tensor ("all equal", "all ones", "positive", "sorted", …).
    `argument`: the name of the parameter that the quantity belongs to; "#2" for the third one if it has no name; ""
    if not known. For cotangents the number of the output. `axis`: of a size or stride; None if not known.
    `constant`: what it is compared with where that is no number: "mean", None, a dtype's name, an `Operand`.
    `derived`: the number is only near the one that decides, as the quantity went through something unknown.
    `within`: the places in `Clues.found` of the predicates that have to hold for this one to be reached.
    """

    quantity: QuantityKind
    number: float | None
    detail: str
    path: str
    line: int
    text: str
    function: str = ""
    argument: str = ""
    axis: int | None = None
    relation: Relation = "asked"
    constant: Any = None
    derived: bool = False
    within: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Clues:
    """`numbers`: every numeric constant anywhere in the code for which no role is known."""

    found: tuple[Clue, ...] = ()
    numbers: tuple[float, ...] = ()
