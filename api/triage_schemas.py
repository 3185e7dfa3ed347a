"""The bodies about findings of projects, with the examples that the OpenAPI document shows. Decides nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints, model_validator

from api.schemas import EXAMPLE_ID, Body, Identifier
from services.reports.document import FindingVerdict, TriageState
from services.triage.decisions import LONGEST_TEXT, MOST_AT_ONCE

_MOMENT = "2026-11-29T12:00:00Z"
_FINGERPRINT = "0b5f1c7e9a3d24680b5f1c7e9a3d24680b5f1c7e"

Severity = Literal["error", "warning", "note"]
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT)]
Fingerprint = Annotated[str, StringConstraints(min_length=1, max_length=80)]
Person = Annotated[str, StringConstraints(min_length=1, max_length=100)]

FINDING_EXAMPLE: dict[str, Any] = {
    "fingerprint": _FINGERPRINT,
    "state": "accepted",
    "reason": "measured: the norm is never nought here",
    "decided_by": "ann",
    "decided_at": _MOMENT,
    "until": {"date": "2027-03-01T00:00:00Z", "occurrences": None, "torch": None},
    "occurrences": 2,
    "assignee": "ben",
    "rule": "GP102",
    "name": "hand-normalisation",
    "severity": "warning",
    "path": "vision/ops.py",
    "line": 17,
    "symbol": "vision.ops.Norm.forward",
    "message": "`x / x.norm()` is NaN where the row is nought",
    "verdict": "not_exercised",
    "on_main": True,
    "first_analysis": EXAMPLE_ID,
    "last_analysis": EXAMPLE_ID,
    "first_seen_at": _MOMENT,
    "last_seen_at": _MOMENT,
    "fixed_at": None,
}
EVENT_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "at": _MOMENT,
    "actor": "ann",
    "actor_kind": "user",
    "kind": "accepted",
    "before": "open",
    "after": "accepted",
    "text": "measured: the norm is never nought here",
    "details": {"until": {"date": "2027-03-01T00:00:00+00:00"}},
}
PAGE_EXAMPLE = {"items": [FINDING_EXAMPLE], "next_cursor": None}
SUGGESTION_EXAMPLE = {
    "role": "code owner",
    "name": "@ben",
    "user_id": EXAMPLE_ID,
    "why": "the repository's CODEOWNERS names them for vision/ops.py",
}
ONE_EXAMPLE = {
    **FINDING_EXAMPLE,
    "suggested": [SUGGESTION_EXAMPLE],
    "history": [EVENT_EXAMPLE],
    "next_cursor": None,
}
BULK_EXAMPLE = {"changed": [_FINGERPRINT], "unchanged": [], "missing": []}


class UntilBody(Body):
    """What ends an acceptance; all null: nothing does."""

    date: AwareDatetime | None = Field(default=None, description="with a time zone, in the future")
    occurrences: int | None = Field(
        default=None, ge=1, le=10_000, description="further analyses of the main line that may show it"
    )
    torch: Annotated[str, StringConstraints(max_length=40)] | None = Field(
        default=None,
        description="a version: the first analysis of the main line with a newer one ends the acceptance; `present`: "
        "the version that the main line runs with now",
    )


class DecisionBody(Body):
    """A new state, an assignee, or both."""

    state: Literal["open", "accepted", "false_positive"] | None = Field(default=None, description="null: as it is")
    reason: Text = Field(default="", description="required to accept, and to call something a false positive")
    until: UntilBody = UntilBody()
    assignee: Person | None = Field(
        default=None, description="a member, by id or name; an explicit null: nobody; left out: as it is"
    )

    @model_validator(mode="after")
    def _says_something(self) -> DecisionBody:
        if self.state is None and "assignee" not in self.model_fields_set:
            raise ValueError("give a `state`, an `assignee`, or both")
        return self


class FilterBody(Body):
    """Which findings of the project are meant; what is left out does not narrow."""

    state: list[TriageState] = Field(default=[], max_length=5)
    severity: list[Severity] = Field(default=[], max_length=3)
    verdict: list[FindingVerdict] = Field(default=[], max_length=4)
    rule: str | None = Field(default=None, max_length=100, description="id, name, or beginning of ids")
    path: str | None = Field(default=None, max_length=1000, description="a file, or a directory that ends in `/`")
    assignee: Person | None = Field(default=None, description="the id of a user, or `nobody`")
    on_main: bool | None = Field(default=None, description="whether the newest analysis of the main line has it")
    text: str | None = Field(default=None, max_length=200, description="in message, path, symbol or fingerprint")


class BulkBody(DecisionBody):
    """A decision about many findings: those named, or those that a filter takes; 500 at most."""

    fingerprints: list[Fingerprint] = Field(default=[], max_length=MOST_AT_ONCE)
    filter: FilterBody | None = None


class CommentBody(Body):
    """Something to say about a finding; plain text, shown as it is."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]


class UntilOut(BaseModel):
    date: datetime | None
    occurrences: int | None
    torch: str | None


class ProjectFindingOut(BaseModel):
    """A finding of a project by its fingerprint, as it was last seen, and what was decided about it."""

    fingerprint: str
    state: TriageState
    reason: str
    decided_by: str | None
    decided_at: datetime | None
    until: UntilOut
    occurrences: int = Field(description="analyses of the main line that have shown it since it was accepted")
    assignee: str | None
    rule: str
    name: str
    severity: Severity
    path: str
    line: int
    symbol: str
    message: str
    verdict: FindingVerdict
    on_main: bool = Field(description="whether the newest analysis of the main line that looked for it has it")
    first_analysis: Identifier | None
    last_analysis: Identifier | None
    first_seen_at: datetime
    last_seen_at: datetime
    fixed_at: datetime | None


class TriageEventOut(BaseModel):
    """Something that happened to a finding."""

    id: str
    at: datetime
    actor: str
    actor_kind: str
    kind: str
    before: str | None
    after: str | None
    text: str
    details: dict[str, Any]


class SuggestionOut(BaseModel):
    """Who might look after a finding."""

    role: Literal["code owner", "brought in by"]
    name: str | None = Field(description="as CODEOWNERS, the forge or the commit writes it; null: nobody is known")
    user_id: Identifier | None = Field(description="what `assignee` takes; null: no member of the project")
    why: str


class FindingWithHistory(ProjectFindingOut):
    """A finding with who might look after it, and with what happened to it, the newest first."""

    suggested: list[SuggestionOut]
    history: list[TriageEventOut]
    next_cursor: str | None = Field(description="asks for what happened before")


class BulkOut(BaseModel):
    """Fingerprints: changed, left as they were, not of this project."""

    changed: list[str]
    unchanged: list[str]
    missing: list[str]
