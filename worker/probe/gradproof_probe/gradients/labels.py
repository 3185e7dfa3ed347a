"""Why a gradient that differs from the derivative is no fault: a word, the line, and what made us think so.

A label rests on what the code did (a run that differs in one thing only) and, where there is something to read, on what
its source says. `meant` is whether the source says that the difference is intended; a cut that no idiom explains is
named with its line, and whether it is a slip is left to who reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproof_probe.gradients.attribution import Place


@dataclass(frozen=True, slots=True)
class Label:
    """`cause` is a stable word; `because` are sentences, each a thing that was seen or read."""

    cause: str
    text: str
    because: tuple[str, ...] = ()
    place: Place | None = None
    meant: bool = True

    def to_evidence(self) -> dict[str, Any]:
        return {
            "label": self.cause,
            "meant": self.meant,
            "place": None if self.place is None else f"{self.place.path}:{self.place.line}",
            "because": list(self.because),
        }


def said(place: Place | None) -> str:
    """` at file:line`, or where the line isn't the submitted code's."""
    return f" at {place.path}:{place.line}" if place is not None else " in a library's code"
