"""Queries over projects. Never commits."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.database import new_id
from services.database.base import utc_now
from services.projects.models import ProjectRow


def ensure_project(session: Session, name: str) -> str:
    """The id of the project with this name, which is created if it is new."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(ProjectRow)
        .values(id=new_id(), name=name, created_at=utc_now())
        .on_conflict_do_nothing(index_elements=[ProjectRow.name])
    )
    return session.scalars(select(ProjectRow.id).where(ProjectRow.name == name)).one()


def project_name(session: Session, project_id: str) -> str | None:
    """The name of a project."""
    return session.scalar(select(ProjectRow.name).where(ProjectRow.id == project_id))


def find_project(session: Session, name: str) -> str | None:
    """The id of the project with this name."""
    return session.scalar(select(ProjectRow.id).where(ProjectRow.name == name))
