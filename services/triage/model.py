"""The plain values of triage: a finding as a project knows it, what happened to it, how many there are of what.

This module must not know the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from services.reports.document import FindingVerdict, TriageState

SEVERITIES: Final = ("error", "warning", "note")
# What is still to be decided about.
UNDECIDED: Final[tuple[TriageState, ...]] = ("open", "regressed")
# What does not count against an analysis.
DECIDED: Final[tuple[TriageState, ...]] = ("accepted", "false_positive")
# The value of the filter `assignee` that asks for findings that nobody has.
NOBODY: Final = "nobody"


@dataclass(frozen=True, slots=True)
class Until:
    """What ends an acceptance; all null: nothing does.

    `occurrences` is the number of further analyses of the main line that may show the finding, `torch` the version that
    the acceptance holds for: the first analysis that ran with a newer one ends it.
    """

    date: datetime | None = None
    occurrences: int | None = None
    torch: str | None = None


FOR_GOOD: Final = Until()


@dataclass(frozen=True, slots=True)
class ProjectFinding:
    """A finding of a project by its fingerprint, as it was last seen, and what was decided about it.

    `occurrences` counts the analyses of the main line that have shown it since it was accepted. `on_main`: the newest
    analysis of the main line has it.
    """

    id: str
    project_id: str
    fingerprint: str
    state: TriageState
    reason: str
    decided_by: str | None
    decided_by_name: str | None
    decided_at: datetime | None
    until: Until
    occurrences: int
    assignee_id: str | None
    assignee_name: str | None
    rule: str
    name: str
    severity: str
    path: str
    line: int
    symbol: str
    message: str
    verdict: FindingVerdict
    on_main: bool
    first_analysis_id: str | None
    last_analysis_id: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    fixed_at: datetime | None


@dataclass(frozen=True, slots=True)
class FindingFilter:
    """Which findings of a project are wanted; what is empty or None does not narrow.

    `rule` is an id, a name, or the beginning of ids; `path` a file, or a directory that ends in `/`; `assignee` the id
    of a user, or `NOBODY`; `text` is looked for in message, path, symbol and fingerprint, whatever the case.
    """

    states: tuple[TriageState, ...] = ()
    severities: tuple[str, ...] = ()
    verdicts: tuple[FindingVerdict, ...] = ()
    rule: str | None = None
    path: str | None = None
    assignee: str | None = None
    on_main: bool | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class FindingPage:
    """Some findings of a project, the gravest first and of those the newest, and the cursor of the next page."""

    items: tuple[ProjectFinding, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class NamedCount:
    """How many findings there are of something: a rule by its id, a person by the id of the user."""

    key: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Facets:
    """How many findings there are by each value of a filter, all other filters being in force.

    `rules` and `assignees` are the fifty with the most findings; findings of nobody have the key `NOBODY`.
    """

    total: int
    states: Mapping[str, int] = field(default_factory=dict)
    severities: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)
    on_main: Mapping[bool, int] = field(default_factory=dict)
    rules: tuple[NamedCount, ...] = ()
    assignees: tuple[NamedCount, ...] = ()


@dataclass(frozen=True, slots=True)
class TriageEvent:
    """Something that happened to a finding.

    `kind`: `accepted`, `false_positive`, `reopened`, `expired`, `commented`, `assigned`, and what analyses bring about:
    `fixed`, `regressed`, `gone` (a decided finding that is not there any more), `suppressed` (by a comment in the
    source). `before` and `after` are states, or, of `assigned`, the names of people.
    """

    id: str
    at: datetime
    actor_kind: str
    actor_id: str
    actor_name: str
    kind: str
    before: str | None
    after: str | None
    text: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class History:
    """What happened to a finding, the newest first, and the cursor of the next page."""

    items: tuple[TriageEvent, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class RulePrecision:
    """What became of the findings of a rule: what execution said of them, and what people did."""

    rule: str
    name: str
    total: int
    confirmed: int
    not_reproduced: int
    open: int
    accepted: int
    false_positive: int
    fixed: int
    genuine: int

    @property
    def precision(self) -> float | None:
        """The share of `genuine` findings among those of which somebody or something knows; None: nobody knows any.

        Genuine is what was confirmed by execution, accepted as it is, or fixed, and not called a false positive.
        """
        known = self.genuine + self.false_positive
        return self.genuine / known if known else None


@dataclass(frozen=True, slots=True)
class Standing:
    """The findings on the main line of a project that are still to be decided about, by severity."""

    project_id: str
    error: int = 0
    warning: int = 0
    note: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.error + self.warning + self.note
