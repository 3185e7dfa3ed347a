"""The report document, `schema_version` "1": the contract that clients, graders and the pull-request bot read.

Keys are never re-used with another meaning; readers ignore unknown keys. This module must not know the database:
`services.reports.build` assembles a document from rows or from a run without a server alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = "1"

AnalysisStatus = Literal["queued", "running", "finished", "failed", "cancelled", "partial"]
FindingVerdict = Literal["confirmed", "not_reproduced", "not_exercised", "static_only"]
CheckVerdict = Literal["pass", "fail", "inconclusive", "skipped", "error"]
TriageState = Literal["open", "accepted", "false_positive", "fixed", "regressed"]
CheckClassName = Literal["new", "already_failing", "flaky", "not_comparable"]
Json = dict[str, object]

# What a failing check is, seen from the base, for a sentence.
CLASS_WORDS: Final[Mapping[CheckClassName, str]] = {
    "new": "new",
    "already_failing": "already failing on the base",
    "flaky": "flaky",
    "not_comparable": "not comparable",
}


class Document(BaseModel):
    """Common behaviour: unknown keys are refused when we write, so that a typing slip can't become a key."""

    model_config = ConfigDict(extra="forbid")


class RefusedRequirement(Document):
    text: str
    place: str
    reason: str


class EnvironmentInfo(Document):
    """What came of the repository's own requirements."""

    policy: Literal["wheels"] = "wheels"
    packages: list[str] = Field(default=[], description="installed for the run, pinned")
    kept: list[str] = Field(default=[], description="asked for, and left as the interpreter has it")
    refused: list[RefusedRequirement] = Field(default=[], description="neither: what is no wheel of the index")
    reason: str | None = Field(default=None, description="why nothing was installed although something was asked for")


class Tool(Document):
    name: Literal["gradproof"] = "gradproof"
    version: str
    torch: str | None = Field(description="torch that ran the checks; null when nothing was run")
    devices: list[str]
    sandbox: str = Field(
        default="none",
        description="how submitted code was confined: bwrap-user, bwrap-root, off (--no-sandbox), none (nothing ran)",
    )
    torch_imports: int = Field(
        default=0, description="how many sandboxes imported torch: one for each batch of targets"
    )
    environment: EnvironmentInfo | None = Field(
        default=None, description="the repository's own requirements; null where the policy is off, or nothing ran"
    )


class AnalysisInfo(Document):
    id: str
    created_at: datetime
    finished_at: datetime | None
    status: AnalysisStatus
    duration_s: float | None
    reason: str | None = Field(default=None, description="why the status is failed, cancelled or partial")
    peak_memory_bytes: int | None = Field(
        default=None,
        description="the most that one of its sandboxes had in use at a time; null where nobody measured it",
    )

    @property
    def peak_memory(self) -> str | None:
        """The same for a person: `812 MiB`."""
        return None if self.peak_memory_bytes is None else f"{self.peak_memory_bytes / 2**20:,.0f} MiB"


class Source(Document):
    kind: Literal["directory", "archive", "git"]
    url: str | None = None
    commit: str | None = None


class SnapshotInfo(Document):
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    source: Source
    files: int
    lines: int


class GateCondition(Document):
    name: str
    passed: bool
    explanation: str


class GateRecord(Document):
    """What a gate said when its analysis ended, kept where a later decision about a finding changed that."""

    passed: bool
    conditions: list[GateCondition]
    revised_at: datetime = Field(description="when the gate was last judged anew")
    revised_by: str = Field(description="whose decision that was for")


class Gate(Document):
    """`passed` and `conditions` are what holds now, by all that was decided about the findings."""

    passed: bool
    conditions: list[GateCondition]
    at_end: GateRecord | None = Field(
        default=None, description="what it said when the analysis ended; null where nothing has changed since"
    )


class EditInfo(Document):
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    replacement: str


class FixInfo(Document):
    safety: Literal["safe", "unsafe", "none"] = "none"
    edits: list[EditInfo] = []
    verified: bool | None = Field(
        default=None,
        description="whether the fixed code was run and is clean at the input that showed the fault, with the same "
        "values elsewhere; null where it was not run",
    )
    verified_reason: str | None = Field(default=None, description="the sentence behind verified")


class Placed(Document):
    """Something at a place in a file; in a notebook lines are those of the cell."""

    path: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    cell: int | None = Field(default=None, description="cell of a notebook, from 1; null in other files")

    @property
    def place(self) -> str:
        """The line for a person: `pkg/a.py:12`, `notebook.ipynb:cell 3:2`."""
        return f"{self.path}:cell {self.cell}:{self.start_line}" if self.cell else f"{self.path}:{self.start_line}"


class RelatedInfo(Placed):
    message: str


class FindingInfo(Placed):
    fingerprint: str
    rule: str
    name: str
    severity: Literal["error", "warning", "note"]
    confidence: Literal["high", "medium", "low"]
    symbol: str
    message: str
    explanation_url: str
    verdict: FindingVerdict
    verdict_reason: str
    evidence: Json = {}
    fix: FixInfo = FixInfo()
    related: list[RelatedInfo] = []
    is_new: bool = True
    triage: TriageState = "open"


class SuppressionInfo(Document):
    rule: str
    path: str
    start_line: int
    cell: int | None = None
    fingerprint: str
    reason: str


class HarnessVariant(Document):
    """The same target with another value of a mode argument, named by `option`."""

    constructor: str | None
    inputs: list[str]
    option: str


class Harness(Document):
    source: Literal["declared", "mined", "synthesised"]
    grade: Literal["A", "B", "C"]
    constructor: str | None
    inputs: list[str]
    provenance: str
    reason: str | None = None
    found_by: str = Field(default="names", description="how it was come by, in one stable word")
    variants: list[HarnessVariant] = Field(
        default=[], description="other values of mode arguments that are checked too"
    )
    code: str = Field(default="", description="builds and calls the target outside Gradproof")


class Diagnosis(Document):
    cause: str
    text: str
    numbers: Json = {}


class CheckInfo(Document):
    check: str
    verdict: CheckVerdict
    device: str
    summary: str
    diagnosis: Diagnosis | None = None
    path: str | None = None
    line: int | None = None
    evidence: Json = {}
    repro: str | None = None
    duration_s: float
    baseline_class: CheckClassName | None = Field(
        default=None,
        description="of a check that fails where there is a base: whether the change brought that about. Only `new` "
        "fails a gate",
    )
    baseline_reason: str | None = Field(default=None, description="the sentence behind baseline_class")

    @property
    def may_block(self) -> bool:
        """Whether it may fail a gate, if it fails: it was compared with nothing, or came with the change."""
        return self.baseline_class in {None, "new"}

    @property
    def seen_from_base(self) -> str | None:
        """Its class for a person, with the reason; None where it was compared with nothing."""
        if self.baseline_class is None:
            return None
        reason = f" ({self.baseline_reason})" if self.baseline_reason else ""
        return f"{CLASS_WORDS[self.baseline_class]}{reason}"


class TargetInfo(Document):
    name: str
    kind: Literal["module", "function", "autograd_function"]
    path: str
    line: int
    harness: Harness | None
    not_run_reason: str | None = Field(default=None, description="why no check could run, in a few stable words")
    not_run_detail: str = Field(default="", description="the sentence behind not_run_reason")
    checks: list[CheckInfo]
    duration_s: float | None = Field(
        default=None, description="seconds from its import to its last check; null where nobody measured it"
    )
    reused: bool = Field(
        default=False, description="found out by an earlier run, and nothing that it rests on has changed since"
    )


class ExampleInfo(Document):
    """One of the repository's own examples, run to learn how its code is called."""

    place: str
    kind: str
    outcome: Literal["ran", "raised", "timed_out", "skipped"]
    detail: str = ""
    captured: int = Field(default=0, description="calls of targets that were kept from it")


class ImportNoteInfo(Document):
    """What importing a file with targets does beside defining things, told from its source."""

    path: str
    line: int
    kind: str = Field(description="runs at import, reads arguments, loads data, ends the process")
    detail: str


class PlanInfo(Document):
    """What was to be run, and what of it was."""

    budget_s: float | None = Field(description="seconds after which no further target is begun; null: no limit")
    planned: int = Field(description="targets that were to be run")
    run: int = Field(description="targets that were begun")
    left_out: dict[str, int] = Field(default={}, description="targets that were never begun, by reason")
    checks: list[str] = Field(description="the checks of each target, in the order of running them")
    checks_left_out: dict[str, int] = Field(
        default={}, description="by check, the targets whose time did not suffice for it"
    )
    examples: str | None = Field(
        default=None, description="why some or all of the repository's own examples were not run"
    )


class TargetCounts(Document):
    found: int = Field(description="what was to be run; what is counted apart stands in not_eligible")
    run: int
    not_run: dict[str, int] = {}
    not_eligible: dict[str, int] = Field(default={}, description="public things that are no targets, by reason")


class MissingPackage(Document):
    """Something that targets import and that the interpreter of the run lacks."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    imported: str = Field(alias="import", description="the top-level name that is imported")
    package: str = Field(description="what to install, by its name on PyPI")
    targets: int = Field(description="how many targets were not run because of it")


class Summary(Document):
    findings: dict[str, int]
    checks: dict[str, int]
    targets: TargetCounts
    suppressed: int = 0


class BaselineEntry(Document):
    """A finding that was known when the baseline was written."""

    fingerprint: str
    rule: str
    path: str
    message: str


class BaselineInfo(Document):
    """The baseline that findings were compared with. `gone` are entries that were looked for and not found."""

    file: str
    entries: int
    gone: list[BaselineEntry] = []


class Report(Document):
    """One analysis, whole."""

    schema_version: Literal["1"] = "1"
    tool: Tool
    analysis: AnalysisInfo
    snapshot: SnapshotInfo
    gate: Gate
    findings: list[FindingInfo]
    suppressions: list[SuppressionInfo] = []
    targets: list[TargetInfo]
    summary: Summary
    baseline: BaselineInfo | None = None
    examples: list[ExampleInfo] = []
    imports: list[ImportNoteInfo] = Field(default=[], description="files that do more than define when imported")
    missing: list[MissingPackage] = Field(default=[], description="packages that would mend what could not be imported")
    plan: PlanInfo | None = Field(default=None, description="null when nothing was to be run")
