"""What an analysis ran on, how it was decided and what it left out: all of its report but findings and targets.

The head and the margins of a page, read with a handful of statements however large the analysis is. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analyzer.findings import ImportNote
from services.reports.document import (
    AnalysisInfo,
    ExampleInfo,
    Gate,
    MissingPackage,
    SnapshotInfo,
    SuppressionInfo,
    TargetInfo,
    Tool,
)


@dataclass(frozen=True, slots=True)
class NotRunGroup:
    """Targets that were not run for one reason: how many, and the first of them with what was said of it."""

    reason: str
    count: int
    first: TargetInfo


@dataclass(frozen=True, slots=True)
class UnsaidChecks:
    """Results of one check that say nothing about the code (`skipped`, `error`), with the reason that they share."""

    check: str
    verdict: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Particulars:
    """`gate` is None until the analysis has ended. `verdicts` are those of check results, by check and verdict.

    `not_run` are reasons, the most frequent first; `not_eligible` what is counted apart. Of `suppressions`, `examples`
    and `imports` there are at most a hundred each, and the numbers of all of them. `examples_reason` says why some or
    all of the repository's own examples were not run.
    """

    analysis: AnalysisInfo
    snapshot: SnapshotInfo
    tool: Tool
    gate: Gate | None
    static_only: bool
    budget_s: float | None
    verdicts: Mapping[str, Mapping[str, int]]
    not_run: tuple[NotRunGroup, ...]
    not_eligible: tuple[NotRunGroup, ...]
    missing: tuple[MissingPackage, ...]
    examples: tuple[ExampleInfo, ...]
    examples_in_all: int
    examples_reason: str | None
    imports: tuple[ImportNote, ...]
    imports_in_all: int
    suppressions: tuple[SuppressionInfo, ...]
    suppressions_in_all: int
