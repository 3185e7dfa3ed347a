"""Queries over what is asked for and what waits. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session

from services.analyses.models import OPEN_STATUSES, AnalysisRow
from services.database.base import FromNow

# Any number that no other program on the same PostgreSQL database uses, and no other lock of ours.
_ADVISORY_LOCK: Final = 0x6772_6C69
_MINUTE: Final = timedelta(minutes=1)


def serialise(session: Session) -> None:
    """Let no other submission count until this transaction has ended: two that count at once both see room for one.

    On SQLite a writing transaction is alone anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})


def count_open(session: Session, *, project_id: str | None = None, submitted_by: str | None = None) -> int:
    """How many analyses wait or run: all of them, those of a project, or those of one submitter."""
    conditions: list[ColumnElement[bool]] = [AnalysisRow.status.in_(OPEN_STATUSES)]
    if project_id is not None:
        conditions.append(AnalysisRow.project_id == project_id)
    if submitted_by is not None:
        conditions.append(AnalysisRow.submitted_by == submitted_by)
    return session.scalar(select(func.count()).select_from(AnalysisRow).where(*conditions)) or 0


def recent(session: Session, submitted_by: str, limit: int) -> Sequence[float]:
    """How many seconds ago each of the newest analyses of a submitter came, of those of the last minute.

    The newest first, and at most `limit`.
    """
    rows = session.execute(
        select(AnalysisRow.created_at, FromNow())
        .where(AnalysisRow.submitted_by == submitted_by, AnalysisRow.created_at > FromNow(-_MINUTE))
        .order_by(AnalysisRow.created_at.desc())
        .limit(limit)
    ).all()
    return [_seconds(created_at, now) for created_at, now in rows]


def _seconds(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds()
