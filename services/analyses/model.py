"""Plain values about analyses: what is asked for, how it goes, what reading brought.

This module must not know the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from analyzer.eligibility import TOLD_FROM_SOURCE
from analyzer.findings import ImportNote, StaticAnalysis, Suppression, TargetDeclaration
from analyzer.registry import rules_named
from services.analyses.errors import InvalidOptionsError
from services.checks.plan import CHECKS
from services.findings.model import SettledFinding, TargetResult
from services.gates import GatePolicy, RuleMode
from services.reports.document import AnalysisInfo, ExampleInfo, Gate, PlanInfo, SnapshotInfo, Source, Tool


class AnalysisOptions(BaseModel):
    """What a submission may choose.

    `checks` and `rules` are empty for all of them; rules to `ignore` are left out of those. A rule is named by its id,
    its name, or the beginning of ids. Without `reuse` everything is run again, also what has not changed. `modes` are
    those that the project holds over the repository's own, by rule id: no submission chooses them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    static_only: bool = False
    checks: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    reuse: bool = True
    modes: Mapping[str, RuleMode] = {}

    @field_validator("checks")
    @classmethod
    def _checks_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in CHECKS:
                raise ValueError(f"there is no check {name!r}; there are {', '.join(CHECKS)}")
        return tuple(name for name in CHECKS if name in value)

    @field_validator("rules", "ignore")
    @classmethod
    def _rules_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not rules_named((name,)):
                raise ValueError(f"there is no rule {name!r}")
        return tuple(sorted(set(value)))

    @classmethod
    def parse(cls, values: object) -> AnalysisOptions:
        """Options out of untrusted data. Raises `InvalidOptionsError`, which names the option and what is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            message = str(first["msg"]).removeprefix("Value error, ")
            raise InvalidOptionsError(f"options{'.' if place else ''}{place}: {message}", option=place) from None


@dataclass(frozen=True, slots=True)
class GitSource:
    """A submission that has to be fetched first. `ref` is a branch, a tag or a commit; None is the default branch."""

    url: str
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submission got: its analysis, and whether it was created by this very call."""

    analysis_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """How far one stage is. `total` grows while earlier stages find out what there is to do."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class AnalysisView:
    """An analysis as it stands."""

    id: str
    status: str
    reason: str | None
    project: str | None
    base_id: str | None
    snapshot_digest: str | None
    source: Source
    options: AnalysisOptions
    created_at: datetime
    started_at: datetime | None
    static_finished_at: datetime | None
    finished_at: datetime | None
    progress: tuple[Stage, ...]
    gate: Gate | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class Page:
    """Some analyses, the newest first, and the cursor of the next page (None: there is none)."""

    items: tuple[AnalysisView, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class DeclaredTarget:
    """How the submitted repository says that a target is built and called.

    `guessed`: reading did not find it, so that its kind is told from its name until it is imported.
    """

    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class StaticOutcome:
    """What reading a snapshot brought, the repository's own configuration included.

    `declared` is keyed by the name of the target; `tolerances` by the name of the tolerance; `checks` is empty for all
    of them, and the submission's own choice goes before it. `has_examples` tells whether the repository seems to show
    how it is called. `absent` says of declared targets, by name, why there is nothing to run. `reading` is what the
    configuration says of which files are read for which rules (see `services.triage.looked`).
    """

    analysis: StaticAnalysis
    policy: GatePolicy = field(default_factory=GatePolicy)
    declared: Mapping[str, DeclaredTarget] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    has_examples: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, object] = field(default_factory=dict)

    def not_run(self, target: TargetDeclaration) -> tuple[str, str] | None:
        """Why a target is not to be run, in a few stable words and a sentence; None if it is."""
        if target.name in self.absent:
            return "not found", self.absent[target.name]
        if target.why_not and target.name not in self.declared:
            return target.why_not, TOLD_FROM_SOURCE
        return None


@dataclass(frozen=True, slots=True)
class ReportParts:
    """Everything an analysis has, for `services.reports.build.build_report`."""

    tool: Tool
    analysis: AnalysisInfo
    snapshot: SnapshotInfo
    gate: Gate
    findings: tuple[SettledFinding, ...]
    suppressed: tuple[Suppression, ...]
    targets: tuple[TargetResult, ...]
    examples: tuple[ExampleInfo, ...] = ()
    imports: tuple[ImportNote, ...] = ()
    plan: PlanInfo | None = None
