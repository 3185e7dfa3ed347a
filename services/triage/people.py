"""Members of a project, by what else they are known as: a name, an id, an e-mail address. Never commits."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from services.accounts.access import EVERYTHING, Permission, Subject
from services.accounts.models import UserRow
from services.projects.repository import is_allowed


def member_called(session: Session, project_id: str, named: str) -> UserRow | None:
    """The user of this id or name, if that is somebody who can see the project and whose account is not disabled."""
    return _member(session, project_id, or_(UserRow.id == named, UserRow.name == named.strip().lower()))


def member_at(session: Session, project_id: str, email: str) -> UserRow | None:
    """The same by an e-mail address; of several accounts with one address it is nobody: who is meant is not known."""
    return _member(session, project_id, func.lower(UserRow.email) == email.strip().lower())


def _member(session: Session, project_id: str, meant: ColumnElement[bool]) -> UserRow | None:
    found = session.scalars(select(UserRow).where(meant, UserRow.disabled_at.is_(None)).limit(2)).all()
    if len(found) != 1:
        return None
    (user,) = found
    sees = Subject("user", user.id, user.name, EVERYTHING, everywhere=user.is_operator, user_id=user.id)
    return user if is_allowed(session, sees, project_id, Permission.READ) else None
