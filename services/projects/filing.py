"""Which project a name means for whoever says it, and where a new one of that name would belong.

A full name is `organisation/name`; projects of the default organisation have bare ones. Who belongs to one other
organisation only may leave it out. This module must not know analyses.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.accounts import organisation_repository as organisations
from services.accounts.access import Permission, Subject
from services.accounts.errors import PermissionDeniedError
from services.accounts.models import DEFAULT_ORGANISATION, OrganisationRow
from services.projects import repository
from services.projects.errors import ProjectArchivedError, ProjectNotFoundError
from services.projects.models import ProjectRow


def named_project(
    session: Session, subject: Subject, name: str, permission: Permission = Permission.READ
) -> ProjectRow:
    """The project that `subject` means by a name.

    Raises `ProjectNotFoundError` if there is none that it may read, `PermissionDeniedError` if it lacks `permission`
    there.
    """
    row = repository.find_readable(session, subject, name)
    if row is None and "/" not in name:
        only = _only_organisation(session, subject, Permission.READ)
        row = None if only is None else repository.find_readable(session, subject, f"{only.slug}/{name}")
    if row is None:
        raise ProjectNotFoundError(f"there is no project {name[:120]!r}", project=name[:120])
    require(session, subject, row.id, permission)
    return row


def require(session: Session, subject: Subject, project_id: str, permission: Permission) -> None:
    """Raises `PermissionDeniedError` if `subject`, who may read the project, lacks `permission` there."""
    if permission is not Permission.READ and not repository.is_allowed(session, subject, project_id, permission):
        raise PermissionDeniedError(
            f"this needs the permission {permission.value!r} in the project", permission=permission.value
        )


def project_for_submission(session: Session, subject: Subject, name: str | None) -> str | None:
    """The id of the project that an analysis is filed under, which is made if it is new. Without a name: none, or the
    one project of a project's token.

    Raises `ProjectNotFoundError`, `PermissionDeniedError`, `ProjectArchivedError`.
    """
    if name is None:
        require_open(session, subject.project_id)
        return subject.project_id
    try:
        row = named_project(session, subject, name, Permission.SUBMIT)
    except ProjectNotFoundError:
        organisation_id, full_name = place_of_new(session, subject, name, Permission.SUBMIT)
        if repository.project_exists(session, full_name):
            raise
        return repository.ensure_project(session, full_name, organisation_id)
    require_open(session, row.id)
    return row.id


def require_open(session: Session, project_id: str | None) -> None:
    """Raises `ProjectArchivedError` if this is a project that takes no new analyses."""
    archived = None if project_id is None else repository.archived_name(session, project_id)
    if archived is not None:
        raise ProjectArchivedError(f"project {archived!r} is archived: it takes no new analyses", project=archived)


def place_of_new(session: Session, subject: Subject, name: str, permission: Permission) -> tuple[str, str]:
    """The organisation and the full name that a new project called `name` would have.

    Raises `ProjectNotFoundError` where `subject` does not belong to that organisation, as if there were none, and
    `PermissionDeniedError` where it belongs and lacks `permission`.
    """
    slug, separator, _ = name.partition("/")
    if separator:
        found = organisations.find_organisation(session, subject, slug, permission)
        if found is not None:
            return found.id, name
        if organisations.find_organisation(session, subject, slug, Permission.READ) is not None:
            raise _may_not_make(permission)
        # Before there were organisations, names could have a stroke; who acts everywhere may go on with it.
        if subject.everywhere and not organisations.organisation_exists(session, slug):
            return DEFAULT_ORGANISATION, name
    else:
        default = organisations.find_organisation(session, subject, DEFAULT_ORGANISATION, permission)
        if default is not None:
            return DEFAULT_ORGANISATION, name
        only = _only_organisation(session, subject, permission)
        if only is not None:
            return only.id, f"{only.slug}/{name}"
        if _only_organisation(session, subject, Permission.READ) is not None:
            raise _may_not_make(permission)
    raise ProjectNotFoundError(
        f"there is no project {name[:120]!r}, and you can't make it: full names are `organisation/name`",
        project=name[:120],
    )


def _may_not_make(permission: Permission) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"making a project needs the permission {permission.value!r} in its organisation", permission=permission.value
    )


def _only_organisation(session: Session, subject: Subject, permission: Permission) -> OrganisationRow | None:
    """The one organisation that `subject` belongs to."""
    found = organisations.first_organisations(session, subject, permission)
    return found[0] if len(found) == 1 else None
