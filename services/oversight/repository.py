"""Queries over everything at once: sums and counts, and the few rows that tell who works and what waits.

Never commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from services.accounts.access import Subject, belongs_to_readable
from services.analyses.models import OPEN_STATUSES, AnalysisRow
from services.checks.models import CheckResultRow
from services.database.base import FromNow
from services.findings.models import FindingRow
from services.jobs.models import OPEN_STATES, JobRow, JobState, LeaseRow, WorkerRow
from services.projects.models import ProjectRow


def check_results(session: Session) -> dict[tuple[str, str, str], int]:
    """How many check results there are by (check, verdict, device)."""
    columns = (CheckResultRow.check_name, CheckResultRow.verdict, CheckResultRow.device)
    rows = session.execute(select(*columns, func.count()).group_by(*columns))
    return {(check, verdict, device): number for check, verdict, device, number in rows}


def findings(session: Session) -> dict[tuple[str, str], int]:
    """How many findings there are by (severity, verdict)."""
    columns = (FindingRow.severity, FindingRow.verdict)
    rows = session.execute(select(*columns, func.count()).group_by(*columns))
    return {(severity, verdict): number for severity, verdict, number in rows}


def attempts(session: Session) -> tuple[int, int]:
    """How often jobs were claimed, and how often a claim was lost because its lease ran out."""
    row = session.execute(select(func.sum(JobRow.attempt), func.sum(JobRow.losses))).one()
    return int(row[0] or 0), int(row[1] or 0)


def lease_remaining_s(session: Session, name: str) -> float | None:
    """For how long a named lease is still held, in seconds by the database's clock; None if nobody ever held it."""
    row = session.execute(select(LeaseRow.until, FromNow()).where(LeaseRow.name == name)).first()
    if row is None:
        return None
    until, now = row
    assert isinstance(until, datetime)
    assert isinstance(now, datetime)
    return (until - now).total_seconds()


def workers(session: Session, limit: int) -> Sequence[tuple[WorkerRow, float]]:
    """The workers that have reported and not said goodbye, each with the seconds since it was last heard of."""
    rows = session.execute(select(WorkerRow, FromNow()).order_by(WorkerRow.host, WorkerRow.started_at).limit(limit))
    return [(worker, max(0.0, (now - worker.seen_at).total_seconds())) for worker, now in rows]


def lost_jobs(session: Session, subject: Subject, limit: int) -> Sequence[tuple[JobRow, str | None]]:
    """The newest jobs that lost an attempt with their worker, of analyses that `subject` may see, and their project."""
    rows = session.execute(
        select(JobRow, ProjectRow.name)
        .join(AnalysisRow, AnalysisRow.id == JobRow.analysis_id)
        .outerjoin(ProjectRow, ProjectRow.id == AnalysisRow.project_id)
        .where(JobRow.losses > 0, belongs_to_readable(AnalysisRow.project_id, subject))
        .order_by(JobRow.id.desc())
        .limit(limit)
    )
    return [(job, project) for job, project in rows]


def open_analyses(
    session: Session, subject: Subject, limit: int
) -> Sequence[tuple[AnalysisRow, str | None, int, int, datetime | None]]:
    """The oldest analyses that have not ended, of those that `subject` may see: project, waiting and running jobs,
    and since when the oldest of the waiting ones waits.
    """
    waits = JobRow.state == JobState.QUEUED
    counts = (
        select(
            JobRow.analysis_id,
            func.sum(case((waits, 1), else_=0)).label("waiting"),
            func.sum(case((waits, 0), else_=1)).label("running"),
            func.min(case((waits, JobRow.created_at))).label("since"),
        )
        .where(JobRow.state.in_(OPEN_STATES))
        .group_by(JobRow.analysis_id)
        .subquery()
    )
    rows = session.execute(
        select(AnalysisRow, ProjectRow.name, counts.c.waiting, counts.c.running, counts.c.since)
        .outerjoin(ProjectRow, ProjectRow.id == AnalysisRow.project_id)
        .outerjoin(counts, counts.c.analysis_id == AnalysisRow.id)
        .where(AnalysisRow.status.in_(OPEN_STATUSES), belongs_to_readable(AnalysisRow.project_id, subject))
        .order_by(AnalysisRow.id)
        .limit(limit)
    )
    return [
        (analysis, project, int(waiting or 0), int(running or 0), since)
        for analysis, project, waiting, running, since in rows
    ]
