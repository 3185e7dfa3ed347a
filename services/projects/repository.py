"""Queries over projects. Never commits."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, readable_by
from services.accounts.models import DEFAULT_ORGANISATION
from services.database import new_id
from services.database.base import utc_now
from services.projects.models import ProjectRow


def ensure_project(session: Session, name: str, organisation_id: str = DEFAULT_ORGANISATION) -> str:
    """The id of the project with this full name, which is created if it is new. Asks nobody whether that is allowed."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(ProjectRow)
        .values(id=new_id(), name=name, organisation_id=organisation_id, created_at=utc_now(), settings={})
        .on_conflict_do_nothing(index_elements=[ProjectRow.name])
    )
    return session.scalars(select(ProjectRow.id).where(ProjectRow.name == name)).one()


def project_name(session: Session, project_id: str) -> str | None:
    """The name of a project."""
    return session.scalar(select(ProjectRow.name).where(ProjectRow.id == project_id))


def project_exists(session: Session, name: str) -> bool:
    """Whether the full name is taken, whoever asks."""
    return session.scalar(select(ProjectRow.id).where(ProjectRow.name == name)) is not None


def find_readable(session: Session, subject: Subject, name: str) -> ProjectRow | None:
    """The project with this full name, if `subject` may read it."""
    return session.scalars(
        readable_by(select(ProjectRow).where(ProjectRow.name == name), ProjectRow.id, subject)
    ).one_or_none()


def is_allowed(session: Session, subject: Subject, project_id: str, permission: Permission) -> bool:
    """Whether `subject` has `permission` in a project."""
    statement = select(ProjectRow.id).where(ProjectRow.id == project_id)
    return session.scalar(readable_by(statement, ProjectRow.id, subject, permission)) is not None
