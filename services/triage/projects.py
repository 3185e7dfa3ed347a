"""A project by what an address calls it: its id, or its name. Knows nothing of findings."""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject
from services.projects.filing import named_project, require
from services.projects.models import ProjectRow
from services.projects.repository import is_allowed


def project_called(
    session: Session, subject: Subject, project: str, permission: Permission = Permission.READ
) -> ProjectRow:
    """The project with this id, or the one that `subject` means by this name.

    Raises `ProjectNotFoundError` if there is none that it may read, `PermissionDeniedError` if it lacks `permission`
    there.
    """
    if is_allowed(session, subject, project, Permission.READ):
        require(session, subject, project, permission)
        return session.get_one(ProjectRow, project)
    return named_project(session, subject, project, permission)
