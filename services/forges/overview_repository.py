"""Queries over pull requests for people who look: what is there, what was written, what is under way. Never commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.accounts.access import Subject, belongs_to_readable
from services.analyses.models import AnalysisRow
from services.forges.models import (
    DeliveryRow,
    ForgeTaskRow,
    InstallationRow,
    PullRequestRow,
    RepositoryRow,
    ReviewThreadRow,
)

PullRequestParts = tuple[PullRequestRow, RepositoryRow, InstallationRow, AnalysisRow | None]


def pull_requests(
    session: Session,
    subject: Subject,
    *,
    project_id: str,
    state: str | None,
    before: str | None,
    limit: int,
) -> Sequence[PullRequestParts]:
    """The pull requests of a project, the newest first, each with where it is and the analysis of its head."""
    statement = (
        select(PullRequestRow, RepositoryRow, InstallationRow, AnalysisRow)
        .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
        .join(InstallationRow, InstallationRow.id == RepositoryRow.installation_id)
        .outerjoin(AnalysisRow, AnalysisRow.id == PullRequestRow.analysis_id)
        .where(RepositoryRow.project_id == project_id, belongs_to_readable(RepositoryRow.project_id, subject))
        .order_by(PullRequestRow.id.desc())
        .limit(limit)
    )
    if state is not None:
        statement = statement.where(PullRequestRow.state == state)
    if before is not None:
        statement = statement.where(PullRequestRow.id < before)
    return [(row[0], row[1], row[2], row[3]) for row in session.execute(statement)]


def pull_request(session: Session, subject: Subject, pull_request_id: str) -> PullRequestParts | None:
    """One of them; None if there is none, or none that `subject` may see."""
    statement = (
        select(PullRequestRow, RepositoryRow, InstallationRow, AnalysisRow)
        .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
        .join(InstallationRow, InstallationRow.id == RepositoryRow.installation_id)
        .outerjoin(AnalysisRow, AnalysisRow.id == PullRequestRow.analysis_id)
        .where(PullRequestRow.id == pull_request_id, belongs_to_readable(RepositoryRow.project_id, subject))
    )
    row = session.execute(statement).first()
    return None if row is None else (row[0], row[1], row[2], row[3])


def threads(session: Session, pull_request_id: str, limit: int) -> Sequence[ReviewThreadRow]:
    """Our comments at lines of a pull request, the newest first."""
    return session.scalars(
        select(ReviewThreadRow)
        .where(ReviewThreadRow.pull_request_id == pull_request_id)
        .order_by(ReviewThreadRow.id.desc())
        .limit(limit)
    ).all()


def tasks(session: Session, pull_request_id: str, limit: int) -> Sequence[tuple[ForgeTaskRow, DeliveryRow | None]]:
    """What was done and is to be done for a pull request, the newest first, with the webhook that began it."""
    rows = session.execute(
        select(ForgeTaskRow, DeliveryRow)
        .outerjoin(DeliveryRow, DeliveryRow.id == ForgeTaskRow.delivery_id)
        .where(ForgeTaskRow.pull_request_id == pull_request_id)
        .order_by(ForgeTaskRow.id.desc())
        .limit(limit)
    )
    return [(row[0], row[1]) for row in rows]


def repositories(session: Session, subject: Subject, project_id: str, limit: int) -> Sequence[RepositoryRow]:
    """The repositories at forges whose analyses belong to a project."""
    statement = (
        select(RepositoryRow)
        .where(
            RepositoryRow.project_id == project_id,
            RepositoryRow.removed_at.is_(None),
            belongs_to_readable(RepositoryRow.project_id, subject),
        )
        .order_by(RepositoryRow.full_name)
        .limit(limit)
    )
    return session.scalars(statement).all()
