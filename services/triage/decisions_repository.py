"""Queries behind decisions about findings: the rows that are meant, the people that may be. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from services.accounts.models import UserRow
from services.analyses.models import AnalysisRow
from services.forges.models import PullRequestRow
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


def find_user(session: Session, named: str) -> UserRow | None:
    """The user of this id or name, unless it is disabled."""
    user = UserRow
    return session.scalars(
        select(user)
        .where(or_(user.id == named, user.name == named.strip().lower()), user.disabled_at.is_(None))
        .limit(1)
    ).first()


def origin_of(session: Session, analysis_id: str) -> tuple[str | None, str | None, str] | None:
    """Who brought an analysis about: the name that is shown, the name or id of the user that this may be, and how it is
    known. None if there is no such analysis any more.
    """
    row = session.execute(
        select(AnalysisRow.submitted_by, AnalysisRow.submitted_by_name, PullRequestRow.author)
        .outerjoin(PullRequestRow, PullRequestRow.id == AnalysisRow.pull_request_id)
        .where(AnalysisRow.id == analysis_id)
    ).first()
    if row is None:
        return None
    submitter_id, submitter, author = row
    if author:
        return author, author, "the author of the pull request that first showed it"
    if submitter:
        # By id where there is one: a token of somebody's goes by a name of its own.
        why = "submitted the analysis that first showed it; who wrote the line is not known"
        return submitter, submitter_id or submitter, why
    return None, None, "who wrote the line is not known"
