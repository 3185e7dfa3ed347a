"""Queries behind decisions about findings: the rows that are meant. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.triage.model import FindingFilter
from services.triage.models import ProjectFindingRow
from services.triage.repository import filtered, of_project

_PROJECTS: Final = 100


def rows_named(session: Session, project_id: str, fingerprints: Collection[str]) -> Sequence[ProjectFindingRow]:
    """The rows with these fingerprints, at most a thousand."""
    row = ProjectFindingRow
    return session.scalars(
        select(row)
        .where(row.project_id == project_id, row.fingerprint.in_(list(fingerprints)[:1_000]))
        .order_by(row.id)
    ).all()


def rows_taken_by(session: Session, project_id: str, wanted: FindingFilter, limit: int) -> Sequence[ProjectFindingRow]:
    """Up to `limit` rows that a filter takes."""
    taken = (
        filtered(select(ProjectFindingRow), of_project(project_id), wanted).order_by(ProjectFindingRow.id).limit(limit)
    )
    return session.scalars(taken).all()


def projects_with_due_acceptances(session: Session, now: datetime) -> Sequence[str]:
    """The projects that have findings whose acceptance was until a date before `now`."""
    row = ProjectFindingRow
    due = select(row.project_id).where(row.until_date <= now, row.state == "accepted").distinct().limit(_PROJECTS)
    return session.scalars(due).all()


def due_acceptances(session: Session, project_id: str, now: datetime, limit: int) -> Sequence[ProjectFindingRow]:
    """Up to `limit` of these findings of a project."""
    row = ProjectFindingRow
    return session.scalars(
        select(row)
        .where(row.project_id == project_id, row.until_date <= now, row.state == "accepted")
        .order_by(row.id)
        .limit(limit)
    ).all()
