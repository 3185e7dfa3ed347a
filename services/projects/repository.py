"""Queries over projects. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, readable_by
from services.accounts.models import DEFAULT_ORGANISATION, OrganisationRow
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


def archived_name(session: Session, project_id: str) -> str | None:
    """The name of a project that is archived; None if it is not."""
    return session.scalar(
        select(ProjectRow.name).where(ProjectRow.id == project_id, ProjectRow.archived_at.is_not(None))
    )


def main_line_of(session: Session, project_id: str) -> tuple[str | None, str | None]:
    """The default branch of a project and the analysis that changes are compared with, as far as there are any."""
    row = session.execute(
        select(ProjectRow.default_branch, ProjectRow.baseline_id).where(ProjectRow.id == project_id)
    ).one()
    return row.default_branch, row.baseline_id


def project_names(session: Session, project_ids: Collection[str]) -> dict[str, str]:
    """The names of some projects, by their ids."""
    rows = session.execute(select(ProjectRow.id, ProjectRow.name).where(ProjectRow.id.in_(project_ids)))
    return dict(rows.all())


def project_exists(session: Session, name: str) -> bool:
    """Whether the full name is taken, whoever asks."""
    return session.scalar(select(ProjectRow.id).where(ProjectRow.name == name)) is not None


def find_readable(session: Session, subject: Subject, called: str) -> ProjectRow | None:
    """The project with this id or this full name, if `subject` may read it; an id goes first."""
    statement = select(ProjectRow).where(or_(ProjectRow.id == called, ProjectRow.name == called))
    rows = session.scalars(readable_by(statement, ProjectRow.id, subject).limit(2)).all()
    return next((row for row in rows if row.id == called), rows[0] if rows else None)


def readable_of(session: Session, subject: Subject, project_ids: Collection[str]) -> Sequence[ProjectRow]:
    """Those of these projects that `subject` may read."""
    return session.scalars(
        readable_by(select(ProjectRow).where(ProjectRow.id.in_(project_ids)), ProjectRow.id, subject)
    ).all()


def readable_after(
    session: Session,
    subject: Subject,
    name: str,
    *,
    limit: int,
    organisation_id: str | None,
    archived: bool,
    text: str | None = None,
) -> Sequence[ProjectRow]:
    """Up to `limit` projects that `subject` may read whose names come after `name`, in their order.

    `text` is looked for in names, whatever the case.
    """
    statement = readable_by(select(ProjectRow), ProjectRow.id, subject).where(
        ProjectRow.name > name, ProjectRow.archived_at.is_not(None) if archived else ProjectRow.archived_at.is_(None)
    )
    if organisation_id is not None:
        statement = statement.where(ProjectRow.organisation_id == organisation_id)
    if text:
        statement = statement.where(func.lower(ProjectRow.name).contains(text.lower(), autoescape=True))
    return session.scalars(statement.order_by(ProjectRow.name).limit(limit)).all()


def permissions_in(session: Session, subject: Subject, project_ids: Sequence[str]) -> dict[str, frozenset[Permission]]:
    """What `subject` may do in each of these projects."""
    allowed: dict[str, set[Permission]] = {project_id: set() for project_id in project_ids}
    for permission in Permission:
        statement = select(ProjectRow.id).where(ProjectRow.id.in_(project_ids))
        for project_id in session.scalars(readable_by(statement, ProjectRow.id, subject, permission)):
            allowed[project_id].add(permission)
    return {project_id: frozenset(permissions) for project_id, permissions in allowed.items()}


def slugs_of(session: Session, organisation_ids: Collection[str]) -> dict[str, str]:
    """The names of organisations by their ids."""
    rows = session.execute(
        select(OrganisationRow.id, OrganisationRow.slug).where(OrganisationRow.id.in_(organisation_ids))
    )
    return {row.id: row.slug for row in rows}


def is_allowed(session: Session, subject: Subject, project_id: str, permission: Permission) -> bool:
    """Whether `subject` has `permission` in a project."""
    statement = select(ProjectRow.id).where(ProjectRow.id == project_id)
    return session.scalar(readable_by(statement, ProjectRow.id, subject, permission)) is not None
