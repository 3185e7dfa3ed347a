"""What static findings suspect inside the target, and what became of each suspicion.

A hypothesis names a line and an operand; whatever it names beyond that steers nothing here, so that a word the
analyzer adds later breaks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gradproof_probe.gradients.attribution import Place

Settled = Literal["confirmed", "not_reproduced", "not_reached"]
# The line of a statement over several lines differs between the source's reader and the running frame.
_SLACK: Final = 1
# What finite values can't show, or only their precision: a search that comes out clean says nothing about these.
_UNSEEN: Final = ("probabilities in the place of logits", "beyond the exact whole numbers", "near 0")


@dataclass(slots=True)
class Hypothesis:
    rule: str
    fingerprint: str
    path: str
    line: int
    singular_set: str
    outcome: Settled = "not_reached"
    closest: float = math.inf
    # The input that showed it, as expressions over the ordinary one, and the precision.
    shown_at: list[list[Any]] | None = None
    precision: str = ""

    @property
    def low_precision(self) -> bool:
        return "float16" in self.singular_set or "65504" in self.singular_set

    def near(self, place: Place | None, slack: int = _SLACK) -> bool:
        return place is not None and place.path == self.path and abs(place.line - self.line) <= slack

    def to_wire(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "fingerprint": self.fingerprint,
            "line": self.line,
            "outcome": self.outcome,
            "closest": self.closest if math.isfinite(self.closest) else None,
            **({"shown_at": self.shown_at, "precision": self.precision} if self.outcome == "confirmed" else {}),
        }


def about(hypotheses: Sequence[Hypothesis], place: Place | None) -> list[Hypothesis]:
    """Those of this line; if there are none, those of the lines next to it."""
    return [item for item in hypotheses if item.near(place, 0)] or [item for item in hypotheses if item.near(place)]


def read_hypotheses(values: Iterable[Mapping[str, Any]]) -> list[Hypothesis]:
    """Those about singular operands; others (in-place writes, devices, precision) are for other checks."""
    return [
        Hypothesis(
            str(value.get("rule", "")),
            str(value.get("fingerprint", "")),
            str(value.get("path", "")),
            int(value.get("line", 0)),
            str(value.get("singular_set", "")),
        )
        for value in values
        if value.get("singular_set") and value["singular_set"] not in _UNSEEN
    ]
