"""Queries over the audit log. Never commits, never changes a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, belongs_to_readable
from services.accounts.models import AuditEventRow
from services.accounts.organisation_repository import organisations_of
from services.projects.models import ProjectRow


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines to list; null: all. `action` may be the part before the dot."""

    project_id: str | None = None
    organisation_id: str | None = None
    actor_id: str | None = None
    action: str | None = None


ANYTHING: Final = AuditFilter()


def organisation_of(session: Session, project_id: str) -> str | None:
    """The organisation that a project belongs to."""
    return session.scalar(select(ProjectRow.organisation_id).where(ProjectRow.id == project_id))


def newest(
    session: Session, subject: Subject, wanted: AuditFilter, *, before: str | None, limit: int
) -> Sequence[tuple[AuditEventRow, str | None]]:
    """Up to `limit` lines that `subject` may see, older than the cursor `before`, each with its project's name."""
    statement = (
        select(AuditEventRow, ProjectRow.name)
        .outerjoin(ProjectRow, ProjectRow.id == AuditEventRow.project_id)
        .where(
            or_(
                belongs_to_readable(AuditEventRow.project_id, subject, Permission.CONFIGURE),
                AuditEventRow.organisation_id.in_(organisations_of(subject, Permission.ADMINISTER)),
            )
        )
        .order_by(AuditEventRow.id.desc())
        .limit(limit)
    )
    for column, value in (
        (AuditEventRow.project_id, wanted.project_id),
        (AuditEventRow.organisation_id, wanted.organisation_id),
        (AuditEventRow.actor_id, wanted.actor_id),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if wanted.action is not None:
        statement = statement.where(
            or_(
                AuditEventRow.action == wanted.action,
                AuditEventRow.action.startswith(wanted.action + ".", autoescape=True),
            )
        )
    if before is not None:
        statement = statement.where(AuditEventRow.id < before)
    return [(row, name) for row, name in session.execute(statement)]
