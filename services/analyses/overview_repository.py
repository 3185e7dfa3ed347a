"""Queries over many analyses at once, each in one line. Every query goes through `visible`; never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, func, select, union_all
from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.analyses.models import SETTLED_STATUSES, AnalysisRow, AnalysisStatus
from services.analyses.overview import AnalysisSummary
from services.analyses.repository import visible
from services.analyses.totals import Totals, count_totals, read_totals
from services.projects.models import ProjectRow
from services.reports.listing import Slice

PAGE_LIMIT: Final = 200
_PROJECTS: Final = 100
_COLUMNS: Final = (
    AnalysisRow.id,
    AnalysisRow.project_id,
    ProjectRow.name.label("project"),
    AnalysisRow.status,
    AnalysisRow.reason,
    AnalysisRow.purpose,
    AnalysisRow.branch,
    AnalysisRow.source_kind,
    AnalysisRow.source_url.label("url"),
    AnalysisRow.source_ref.label("ref"),
    AnalysisRow.source_commit.label("commit"),
    AnalysisRow.base_id,
    AnalysisRow.pull_request_id,
    AnalysisRow.submitted_by_name,
    AnalysisRow.created_at,
    AnalysisRow.finished_at,
    AnalysisRow.gate,
    AnalysisRow.totals,
)


@dataclass(frozen=True, slots=True)
class FoundSource:
    """What is known of the source of an analysis."""

    snapshot_digest: str | None
    status: str
    reason: str | None


def page_of_summaries(
    session: Session,
    subject: Subject,
    *,
    limit: int,
    cursor: str | None = None,
    project_id: str | None = None,
    purposes: Collection[str] = (),
    statuses: Collection[str] = (),
) -> Slice[AnalysisSummary]:
    """Analyses that the subject may read, the newest first; the cursor is the id of the last one of the page before."""
    limit = max(1, min(limit, PAGE_LIMIT))
    statement = _summaries(subject).order_by(AnalysisRow.id.desc()).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(AnalysisRow.id < cursor)
    if project_id is not None:
        statement = statement.where(AnalysisRow.project_id == project_id)
    if purposes:
        statement = statement.where(AnalysisRow.purpose.in_(purposes))
    if statuses:
        statement = statement.where(AnalysisRow.status.in_(statuses))
    items = _read(session, statement)
    return Slice(tuple(items[:limit]), items[limit - 1].id if len(items) > limit else None)


def find_summary(session: Session, subject: Subject, analysis_id: str) -> AnalysisSummary | None:
    """One analysis, if the subject may read it."""
    found = _read(session, _summaries(subject).where(AnalysisRow.id == analysis_id))
    return found[0] if found else None


def find_source(session: Session, subject: Subject, analysis_id: str) -> FoundSource | None:
    """Whether an analysis has a snapshot, and why not, if the subject may read it."""
    statement = select(AnalysisRow.snapshot_digest, AnalysisRow.status, AnalysisRow.reason).where(
        AnalysisRow.id == analysis_id, visible(subject)
    )
    row = session.execute(statement).first()
    return None if row is None else FoundSource(*row)


@dataclass(frozen=True, slots=True)
class FinishedAnalysis:
    """What tells whether an analysis can stand for another one of the same source."""

    id: str
    options: dict[str, object]
    tool: dict[str, object]


def finished_of(
    session: Session, project_id: str, *, commit: str | None = None, snapshot: str | None = None
) -> Sequence[FinishedAnalysis]:
    """The newest finished analyses of a project of this commit, or of this snapshot; twenty at most."""
    row = AnalysisRow
    of_source = row.source_commit == commit if commit is not None else row.snapshot_digest == snapshot
    rows = session.execute(
        select(row.id, row.options, row.tool)
        .where(row.project_id == project_id, row.status == AnalysisStatus.FINISHED, of_source)
        .order_by(row.id.desc())
        .limit(20)
    )
    return [FinishedAnalysis(*values) for values in rows]


def newest_torch(session: Session, project_id: str) -> str | None:
    """The torch that the newest analysis of a project ran with, of the last twenty that have ended."""
    row = AnalysisRow
    tools = session.scalars(
        select(row.tool)
        .where(row.project_id == project_id, row.status.in_(SETTLED_STATUSES))
        .order_by(row.id.desc())
        .limit(20)
    )
    return next((str(tool["torch"]) for tool in tools if tool.get("torch") is not None), None)


def last_settled(
    session: Session, subject: Subject, project_ids: Collection[str], purpose: str, *, last: int
) -> dict[str, list[AnalysisSummary]]:
    """By project, of at most a hundred, the last settled analyses of this purpose, the oldest first.

    Their ids are looked up for each project by itself, all in one statement: so the index gives them, however many
    analyses there are. A project without any is missing.
    """
    row = AnalysisRow
    ids = [
        select(
            select(row.id)
            .where(row.project_id == project_id, row.purpose == purpose, row.status.in_(SETTLED_STATUSES))
            .where(visible(subject))
            .order_by(row.id.desc())
            .limit(max(1, min(last, PAGE_LIMIT)))
            .subquery()
            .c.id
        )
        for project_id in list(project_ids)[:_PROJECTS]
    ]
    found: dict[str, list[AnalysisSummary]] = {}
    if ids:
        statement = _summaries(subject).where(row.id.in_(union_all(*ids))).order_by(row.id)
        for summary in _read(session, statement):
            if summary.project_id is not None:
                found.setdefault(summary.project_id, []).append(summary)
    return found


def last_asked(session: Session, subject: Subject, project_ids: Collection[str]) -> dict[str, datetime]:
    """By project, of at most a hundred, when its newest analysis was asked for; one without any is missing."""
    row = AnalysisRow
    newest = (
        select(func.max(row.id))
        .where(row.project_id.in_(list(project_ids)[:_PROJECTS]), visible(subject))
        .group_by(row.project_id)
    )
    rows = session.execute(select(row.project_id, row.created_at).where(row.id.in_(newest)))
    return {project_id: created_at for project_id, created_at in rows if project_id is not None}


def _summaries(subject: Subject) -> Select[*tuple[Any, ...]]:
    named = select(*_COLUMNS).outerjoin(ProjectRow, ProjectRow.id == AnalysisRow.project_id)
    return named.where(visible(subject))


def _read(session: Session, statement: Select[*tuple[Any, ...]]) -> Sequence[AnalysisSummary]:
    summaries = []
    for row in session.execute(statement).mappings():
        values = dict(row)
        gate, totals = values.pop("gate"), values.pop("totals")
        summaries.append(
            AnalysisSummary(
                **values,
                gate_passed=None if gate is None else bool(gate["passed"]),
                totals=_totals(session, values, totals),
            )
        )
    return summaries


def _totals(session: Session, row: dict[str, Any], stored: dict[str, object] | None) -> Totals | None:
    """Those of the row; those of an analysis that was settled before there were any are counted."""
    if stored is not None:
        return read_totals(stored)
    return count_totals(session, row["id"]) if row["status"] in SETTLED_STATUSES else None
