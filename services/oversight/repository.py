"""Queries over everything at once: sums and counts, never rows. Never commits."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.checks.models import CheckResultRow
from services.database.base import FromNow
from services.findings.models import FindingRow
from services.jobs.models import JobRow, LeaseRow


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
