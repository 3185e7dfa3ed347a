"""Statements that carry an analysis into the findings of its project. Never commits.

An analysis may have 20,000 findings: everything here is one statement for all of them, or one for a thousand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import case, insert, literal, select, update
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.database.base import UtcDateTime
from services.findings.models import FindingRow, SuppressionRow
from services.projects.models import ProjectRow
from services.triage.model import SEVERITIES, Until
from services.triage.models import ProjectFindingRow, TriageEventRow

# Values in one statement: databases limit its parameters, SQLite to 32,766.
_AT_ONCE: Final = 1_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """What the project has noted of a finding already."""

    id: str
    fingerprint: str
    state: str
    on_main: bool
    occurrences: int
    until: Until


@dataclass(frozen=True, slots=True)
class Gone:
    """A finding of the main line that the analysis does not have."""

    id: str
    fingerprint: str
    state: str
    rule: str
    path: str
    last_analysis_id: str | None


def lock_project(session: Session, project_id: str) -> ProjectRow:
    """The project, held until the transaction ends: what decides about its findings happens one after the other.

    Whoever holds an analysis may go on to its project, never the other way round. Rows that refer to the project can
    be added meanwhile.
    """
    return session.scalars(
        select(ProjectRow)
        .where(ProjectRow.id == project_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).one()


def known_findings(session: Session, project_id: str, fingerprints: Collection[str]) -> dict[str, Known]:
    """By fingerprint, what the project has noted of these."""
    row = ProjectFindingRow
    columns = (row.id, row.fingerprint, row.state, row.on_main, row.occurrences)
    until = (row.until_date, row.until_occurrences, row.until_torch)
    found: dict[str, Known] = {}
    for some in _slices(sorted(fingerprints)):
        statement = select(*columns, *until).where(row.project_id == project_id, row.fingerprint.in_(some))
        for values in session.execute(statement):
            known = Known(*values[:5], until=Until(*values[5:]))
            found[known.fingerprint] = known
    return found


def add_findings(session: Session, values: Sequence[Mapping[str, object]]) -> None:
    """Note findings that the project has not had before."""
    if values:
        session.execute(insert(ProjectFindingRow).returning(ProjectFindingRow.id), values)


def refresh(
    session: Session, project_id: str, analysis_id: str, seen_at: datetime, *, on_main: bool, verdicts: bool
) -> None:
    """Tell of all findings of the analysis where and how it saw them.

    Without `on_main` only those that are not on the main line: what a proposal does to a finding is not yet so.
    Without `verdicts` they keep theirs: the analysis ran nothing.
    """
    row, seen = ProjectFindingRow, FindingRow
    values: dict[Any, Any] = {
        row.rule: seen.rule,
        row.name: seen.name,
        row.path: seen.path,
        row.line: seen.start_line,
        row.symbol: seen.symbol,
        row.message: seen.message,
        row.last_analysis_id: analysis_id,
        row.last_seen_at: seen_at,
    }
    if on_main:
        values[row.on_main] = True
        values[row.main_since] = case((row.on_main, row.main_since), else_=literal(seen_at, UtcDateTime()))
    if verdicts:
        ranks = {severity: rank for rank, severity in enumerate(SEVERITIES)}
        values |= {
            row.verdict: seen.verdict,
            row.severity: seen.severity,
            row.severity_rank: case(ranks, value=seen.severity, else_=len(SEVERITIES) - 1),
        }
    statement = update(row).where(
        row.project_id == project_id, seen.analysis_id == analysis_id, seen.fingerprint == row.fingerprint
    )
    if not on_main:
        statement = statement.where(row.on_main.is_(False))
    session.execute(statement.values(values), execution_options={"synchronize_session": False})


def count_occurrence(session: Session, project_id: str, analysis_id: str) -> None:
    """One more analysis has shown the accepted findings that it has."""
    row = ProjectFindingRow
    shown = select(FindingRow.fingerprint).where(FindingRow.analysis_id == analysis_id)
    session.execute(
        update(row)
        .where(row.project_id == project_id, row.state == "accepted", row.fingerprint.in_(shown))
        .values(occurrences=row.occurrences + 1)
        .execution_options(synchronize_session=False)
    )


def gone_from_main(session: Session, project_id: str, analysis_id: str) -> tuple[Gone, ...]:
    """The findings of the main line that the analysis does not have."""
    row = ProjectFindingRow
    shown = select(FindingRow.id).where(
        FindingRow.analysis_id == analysis_id, FindingRow.fingerprint == row.fingerprint
    )
    rows = session.execute(
        select(row.id, row.fingerprint, row.state, row.rule, row.path, row.last_analysis_id).where(
            row.project_id == project_id, row.on_main, ~shown.exists()
        )
    )
    return tuple(Gone(*values) for values in rows)


def suppressed_fingerprints(session: Session, analysis_id: str) -> frozenset[str]:
    """The findings that comments in the source silence."""
    rows = session.scalars(select(SuppressionRow.fingerprint).where(SuppressionRow.analysis_id == analysis_id))
    return frozenset(rows)


def targets_that_failed(session: Session, gone: Iterable[Gone]) -> dict[str, tuple[str, ...]]:
    """By fingerprint, the targets whose check the finding told of when it was last seen."""
    found: dict[str, tuple[str, ...]] = {}
    by_analysis: dict[str, list[str]] = {}
    for item in gone:
        if item.last_analysis_id is not None:
            by_analysis.setdefault(item.last_analysis_id, []).append(item.fingerprint)
    for analysis_id, fingerprints in by_analysis.items():
        for some in _slices(fingerprints):
            statement = select(FindingRow.fingerprint, FindingRow.evidence).where(
                FindingRow.analysis_id == analysis_id, FindingRow.fingerprint.in_(some)
            )
            for fingerprint, evidence in session.execute(statement):
                told = evidence.get("targets")
                found[fingerprint] = tuple(map(str, told)) if isinstance(told, list) else ()
    return found


def change_findings(session: Session, finding_ids: Collection[str], values: Mapping[str, object]) -> None:
    """Give these findings of a project these values."""
    for some in _slices(list(finding_ids)):
        session.execute(
            update(ProjectFindingRow)
            .where(ProjectFindingRow.id.in_(some))
            .values(**values)
            .execution_options(synchronize_session=False)
        )


def add_events(session: Session, values: Sequence[Mapping[str, object]]) -> None:
    """Write down what happened to findings."""
    if values:
        session.execute(insert(TriageEventRow).returning(TriageEventRow.id), values)


def newest_main_torch(session: Session, project_id: str) -> str | None:
    """The version of torch that the newest settled analysis of the main line ran with."""
    baseline = session.scalar(select(ProjectRow.baseline_id).where(ProjectRow.id == project_id))
    return None if baseline is None else torch_of(session, baseline)


def torch_of(session: Session, analysis_id: str) -> str | None:
    """The version of torch that an analysis ran with; None: it ran nothing."""
    tool = session.scalar(select(AnalysisRow.tool).where(AnalysisRow.id == analysis_id))
    torch = (tool or {}).get("torch")
    return None if torch is None else str(torch)


def _slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
