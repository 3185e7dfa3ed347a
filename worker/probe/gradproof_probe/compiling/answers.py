"""What one part of the compile check found, as it passes from the child that ran it to the one that reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gradproof_probe.checks.base import Verdict
from gradproof_probe.gradients.attribution import Place


@dataclass(slots=True)
class Answer:
    """`cause` is a stable word, `text` a sentence, `numbers` what the cause rests on."""

    verdict: Verdict
    cause: str
    text: str
    place: Place | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "cause": self.cause,
            "text": self.text,
            "place": None if self.place is None else [self.place.path, self.place.line],
            "numbers": self.numbers,
            "evidence": self.evidence,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Answer:
        """What `to_wire` wrote, after a way through JSON."""
        place = wire.get("place")
        return cls(
            cast("Verdict", wire["verdict"]),
            str(wire["cause"]),
            str(wire["text"]),
            None if place is None else Place(str(place[0]), int(place[1])),
            dict(wire.get("numbers", {})),
            dict(wire.get("evidence", {})),
        )
