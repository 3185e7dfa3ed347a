"""One static finding as the probe is told of it, and what became of it. No torch, nothing is run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Settled = Literal["confirmed", "not_reproduced", "not_reached"]
# They say that a gradient ends at their place.
CUT_RULES: Final = ("GP201", "GP202", "GP203", "GP204", "GP207", "GP208", "GP210")


@dataclass(frozen=True, slots=True)
class Suspect:
    """`columns` are 1-based like the lines, the end exclusive; `said` is what the rule adds of its own."""

    rule: str
    fingerprint: str
    path: str
    line: int
    end_line: int
    columns: tuple[int, int]
    symbol: str
    severity: str
    said: Mapping[str, Any]

    @property
    def is_note(self) -> bool:
        return self.severity == "note"

    @property
    def cuts_the_gradient(self) -> bool:
        return self.rule in CUT_RULES and not self.is_note

    def text(self, key: str) -> str:
        value = self.said.get(key)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` says what shows the fault, or what was tried and held; `shown_by` names the script that shows it."""

    outcome: Settled
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    shown_by: str = ""

    def to_wire(self, suspect: Suspect) -> dict[str, Any]:
        return {
            "rule": suspect.rule,
            "fingerprint": suspect.fingerprint,
            "line": suspect.line,
            "outcome": self.outcome,
            "text": self.text,
            "numbers": {**self.numbers, **({"shown_by": self.shown_by} if self.shown_by else {})},
        }


def confirmed(text: str, *, shown_by: str = "", **numbers: Any) -> Answer:
    return Answer("confirmed", text, numbers, shown_by)


def held(text: str, **numbers: Any) -> Answer:
    return Answer("not_reproduced", text, numbers)


def not_reached(text: str) -> Answer:
    return Answer("not_reached", text)


def read_suspects(values: Iterable[Mapping[str, Any]]) -> list[Suspect]:
    """What the request says of each; numbers that are missing become those of the line."""
    return [
        Suspect(
            rule=str(value.get("rule", "")),
            fingerprint=str(value.get("fingerprint", "")),
            path=str(value.get("path", "")),
            line=_number(value.get("line")),
            end_line=_number(value.get("end_line")) or _number(value.get("line")),
            columns=(_number(value.get("start_column")), _number(value.get("end_column"))),
            symbol=str(value.get("symbol", "")),
            severity=str(value.get("severity", "warning")),
            said=value,
        )
        for value in values
    ]


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
