"""The right Functions and their hand-written slips, as they enlist themselves.

A Function stands in a module of `functions/` under the decorator `right`, which says how its inputs are drawn and which
slips its author could have made. A slip is an edit of its source: `wrong` instead of `written`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.mutants.draws import REGIMES, Draw, Inputs

Function = type[torch.autograd.Function]


@dataclass(frozen=True, slots=True)
class Slip:
    """One mistake in one formula. `causes`: names that fit it; empty where the error has no pattern to name."""

    name: str
    written: str
    wrong: str
    causes: tuple[str, ...] = ()
    trigger: str = "ordinary"


@dataclass(frozen=True, slots=True)
class Right:
    """A correct Function. `without`: regimes in which it is undefined or has no gradient to speak of."""

    function: Function
    family: str
    draw: Callable[[Draw], Inputs]
    slips: tuple[Slip, ...] = ()
    without: frozenset[str] = field(default_factory=frozenset)
    once: bool = False  # has no second derivative, and says so
    in_place: bool = False

    @property
    def name(self) -> str:
        """The class name."""
        return self.function.__name__

    @property
    def regimes(self) -> tuple[str, ...]:
        """Those in which it may be called; `subset` only where there is something to leave out."""
        flagged = sum(1 for value in self.inputs(30) if isinstance(value, torch.Tensor) and value.requires_grad)
        left_out = self.without | ({"subset"} if flagged < 2 else set())
        return tuple(regime for regime in REGIMES if regime not in left_out)

    def inputs(self, elements: int, regime: str = "normal", seed: int = 0, batch: int | None = None) -> Inputs:
        """The arguments of `apply`."""
        return self.draw(Draw(elements, regime, seed, batch))

    def source(self) -> str:
        """The text of the class, without its decorator."""
        text = textwrap.dedent(inspect.getsource(self.function))
        return text[re.search(r"^class ", text, re.MULTILINE).start() :]  # type: ignore[union-attr]


REGISTERED: list[Right] = []


def right(
    draw: Callable[[Draw], Inputs],
    *slips: Slip,
    without: Sequence[str] = (),
    once: bool = False,
    in_place: bool = False,
) -> Callable[[Any], Any]:
    """Enlist a Function; its family is the name of its module."""

    def enlist(function: Any) -> Any:
        family = function.__module__.rpartition(".")[2]
        REGISTERED.append(Right(function, family, draw, slips, frozenset(without), once, in_place))
        return function

    return enlist
