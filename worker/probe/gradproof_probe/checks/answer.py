"""What a part of a check found, before it is the result of the check; it may pass from one child to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gradproof_probe.checks.base import CheckResult, Diagnosis, Verdict
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.request import Target


@dataclass(slots=True)
class Answer:
    """`cause` is a stable word, `text` a sentence, `numbers` what the cause rests on."""

    verdict: Verdict
    cause: str
    text: str
    place: Place | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    def result(self, target: Target, evidence: Mapping[str, Any]) -> CheckResult:
        """As the result of a check. What has to be looked at has a place: the target's where no better is known."""
        if self.verdict in ("pass", "skipped"):
            return CheckResult(self.verdict, self.text, evidence=evidence)
        return CheckResult(
            self.verdict,
            self.text,
            diagnosis=Diagnosis(self.cause, self.text, self.numbers),
            path=target.path if self.place is None else self.place.path,
            line=target.line if self.place is None else self.place.line,
            evidence=evidence,
        )

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
