"""The filters of lists of findings and targets: read out of an address, and written into one.

What nobody chose is left out of an address. What a value may be is judged here, so that the domain sees no other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends, Query

from services.checks.pages_repository import TargetSelection
from services.findings.pages_repository import FindingSelection

_Text = Annotated[str, Query(max_length=200)]
Severity = Literal["", "error", "warning", "note"]
FindingVerdict = Literal["", "confirmed", "not_reproduced", "not_exercised", "static_only"]
State = Literal["", "open", "accepted", "false_positive", "fixed", "regressed"]
CheckVerdict = Literal["", "fail", "error", "inconclusive", "pass", "skipped"]
Kind = Literal["", "module", "function", "autograd_function"]
Switch = Literal["", "true"]


@dataclass(frozen=True, slots=True)
class ListQuestion:
    """What is asked of a list; empty: everything."""

    def address(self, page: str, /, **changes: str | None) -> str:
        """The address of a page that asks this, changed as said; a cursor is such a change."""
        chosen: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        query = urlencode([(key, value) for key, value in chosen.items() if value])
        return f"{page}?{query}" if query else page

    @property
    def is_narrowed(self) -> bool:
        """Whether anything is left out."""
        return any(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class FindingQuestion(ListQuestion):
    """Which findings of an analysis are asked for."""

    severity: Severity = ""
    verdict: FindingVerdict = ""
    rule: str = ""
    path: str = ""
    state: State = ""
    new: Switch = ""
    text: str = ""

    def selection(self) -> FindingSelection:
        """The same for the use case."""
        return FindingSelection(
            rule=self.rule or None,
            severity=self.severity or None,
            verdict=self.verdict or None,
            path=self.path or None,
            is_new=True if self.new else None,
            triage=self.state or None,
            text=self.text or None,
        )


@dataclass(frozen=True, slots=True)
class TargetQuestion(ListQuestion):
    """Which targets of an analysis are asked for."""

    verdict: CheckVerdict = ""
    kind: Kind = ""
    path: str = ""
    reason: str = ""
    text: str = ""

    def selection(self) -> TargetSelection:
        """The same for the use case."""
        return TargetSelection(
            kind=self.kind or None,
            path=self.path or None,
            verdict=self.verdict or None,
            reason=self.reason or None,
            text=self.text or None,
        )


def _finding_question(
    *,
    severity: Severity = "",
    verdict: FindingVerdict = "",
    rule: _Text = "",
    path: _Text = "",
    state: State = "",
    new: Switch = "",
    text: _Text = "",
) -> FindingQuestion:
    return FindingQuestion(severity, verdict, rule.strip(), path.strip(), state, new, text.strip())


def _target_question(
    *, verdict: CheckVerdict = "", kind: Kind = "", path: _Text = "", reason: _Text = "", text: _Text = ""
) -> TargetQuestion:
    return TargetQuestion(verdict, kind, path.strip(), reason.strip(), text.strip())


AskedFindings = Annotated[FindingQuestion, Depends(_finding_question)]
AskedTargets = Annotated[TargetQuestion, Depends(_target_question)]
Cursor = Annotated[str | None, Query(max_length=20)]
