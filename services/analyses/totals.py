"""The counts of one analysis: what lists, trends and the coverage of a project show without loading findings.

Written when an analysis is settled, and counted anew for one of before that was. This module never commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from services.checks.pages_repository import groups_of_targets, numbers_of_verdicts
from services.findings.pages_repository import FindingGroup, groups_of_findings, number_of_suppressed
from services.reports.build import NOT_ELIGIBLE
from services.triage.model import UNDECIDED


@dataclass(frozen=True, slots=True)
class FindingTotals:
    """Findings by severity: all of them, those that the base lacks, those that nobody has decided about."""

    all: Mapping[str, int] = field(default_factory=dict)
    new: Mapping[str, int] = field(default_factory=dict)
    open: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetTotals:
    """Targets as the summary of a report counts them; `not_run` and `not_eligible` by reason."""

    found: int = 0
    run: int = 0
    not_run: Mapping[str, int] = field(default_factory=dict)
    not_eligible: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Totals:
    """`verdicts` are those of findings, `checks` those of check results."""

    findings: FindingTotals = FindingTotals()
    verdicts: Mapping[str, int] = field(default_factory=dict)
    checks: Mapping[str, int] = field(default_factory=dict)
    targets: TargetTotals = TargetTotals()
    suppressed: int = 0

    def stored(self) -> dict[str, object]:
        """As a column keeps it."""
        return asdict(self)


_TOTALS: TypeAdapter[Totals] = TypeAdapter(Totals)


def read_totals(stored: Mapping[str, object]) -> Totals:
    """Out of a column."""
    return _TOTALS.validate_python(stored)


def count_totals(session: Session, analysis_id: str) -> Totals:
    """Count what the analysis has now, with a handful of statements."""
    findings = groups_of_findings(session, analysis_id)
    targets = groups_of_targets(session, analysis_id)
    eligible = [group for group in targets if group.reason not in NOT_ELIGIBLE]
    return Totals(
        findings=FindingTotals(
            all=_by_severity(findings),
            new=_by_severity(group for group in findings if group.is_new),
            open=_by_severity(group for group in findings if group.triage in UNDECIDED),
        ),
        verdicts=_summed((group.verdict, group.count) for group in findings),
        checks=numbers_of_verdicts(session, analysis_id),
        targets=TargetTotals(
            found=sum(group.count for group in eligible),
            run=sum(group.count for group in eligible if group.reason is None and group.has_checks),
            not_run=_summed(
                (group.reason or "not asked for", group.count)
                for group in eligible
                if group.reason is not None or not group.has_checks
            ),
            not_eligible=_summed(
                (group.reason, group.count) for group in targets if group.reason is not None and group not in eligible
            ),
        ),
        suppressed=number_of_suppressed(session, analysis_id),
    )


def _by_severity(groups: Iterable[FindingGroup]) -> dict[str, int]:
    return _summed((group.severity, group.count) for group in groups)


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for key, number in pairs:
        counts[key] += number
    return dict(counts)
