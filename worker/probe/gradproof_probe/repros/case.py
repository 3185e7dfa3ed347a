"""What one script is about, and the words and literals that are put into it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.gradients.situations import Situation
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.request import Target

# Fields that must not matter at all: the same call with these at their defaults is the reference.
CIRCUMSTANCES: Final = ("input_layout", "wanted", "flags")


@dataclass(frozen=True, slots=True)
class Case:
    """All that a script says."""

    target: Target
    recipe: Recipe
    seed: int
    summary: str
    situation: Situation
    cause: str
    worst: Mapping[str, Any] | None
    second_order: bool
    single: bool
    # Module and name of a Function that the target goes through; its arguments are those of the target's first call.
    inside: tuple[str, str] | None = None

    @property
    def base(self) -> str:
        """The dtype that the harness's inputs are promoted to."""
        return "float32" if self.single else "float64"

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the ordinary situation."""
        return {name: getattr(self.situation, name) for name in self.situation.changed()}

    @property
    def marked(self) -> bool:
        """Whether some arguments may be marked as requiring grad: then the others are constants."""
        return self.inside is not None or any("requires_grad" in item for item in self.recipe.inputs)

    @property
    def narrow(self) -> bool:
        return self.situation.dtype in ("float32", "float16", "bfloat16") or self.situation.autocast != ""

    @property
    def same_call(self) -> bool:
        """Whether the reference is the same call in the ordinary circumstance."""
        if self.narrow:
            return True
        # What an earlier call left behind would be in that call as well: differences know the forward alone.
        if self.situation.sequence != "once":
            return False
        changed = self.situation.changed()
        return self.situation.cotangent.layout != "contiguous" or any(name in changed for name in CIRCUMSTANCES)

    @property
    def place(self) -> tuple[int, str] | None:
        """Number of the variable and index, as source text, of the coordinate that the report shows."""
        worst = self.worst
        if worst is None or not isinstance(worst.get("ordinal"), int) or worst.get("index") is None:
            return None
        return worst["ordinal"], repr(tuple(int(item) for item in worst["index"]))

    @property
    def gap(self) -> float | None:
        """By how much the two values that the report shows differ."""
        values = [] if self.worst is None else [self.worst.get("analytic"), self.worst.get("numeric")]
        numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
        return abs(numbers[0] - numbers[1]) or None if len(numbers) == 2 else None

    def say(self, what: str) -> str:
        """As source text: `what`, in this situation."""
        return repr(what + comma(self.situation.describe()))


def comma(words: str) -> str:
    return f", {words}" if words else ""


def literal(value: Any) -> str | None:
    """Source text that gives the value again when evaluated beside torch; None if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    try:
        again = eval(repr(value), {"torch": torch})
    except Exception:
        return None
    return repr(value) if type(again) is type(value) and (again == value) is True else None


def printable(text: str) -> str:
    """For a docstring: no quotes that end it, no escapes."""
    return text.replace("\\", "/").replace('"""', "'''")[:500].rstrip('"')


def indented(lines: list[str], by: int = 4) -> list[str]:
    return [" " * by + line for line in lines]
