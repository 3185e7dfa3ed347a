"""Who may do what: subjects, roles, permissions, and the one filter that every query over projects goes through.

A foreign project does not exist for whoever may not read it: `readable_by` leaves it out, and the use case answers
404. Only of a project that can be read is it said that something else is not allowed there (403).
This module must not know how a subject proved who it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Select, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute

from services.accounts.models import MembershipRow, ProjectMembershipRow
from services.projects.models import ProjectRow


class Permission(StrEnum):
    """What can be allowed in a project, or, of `ADMINISTER`, in its organisation."""

    READ = "read"
    SUBMIT = "submit"
    TRIAGE = "triage"
    CONFIGURE = "configure"
    ADMINISTER = "administer"


class Role(StrEnum):
    """What a member is; each includes those before it.

    A viewer reads; a triager also submits analyses and decides about findings; a maintainer also sets gates, hooks and
    the project's tokens; an admin also decides who is a member.
    """

    VIEWER = "viewer"
    TRIAGER = "triager"
    MAINTAINER = "maintainer"
    ADMIN = "admin"


EVERYTHING: Final = frozenset(Permission)
_ALLOWED: Final[dict[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.TRIAGER: frozenset({Permission.READ, Permission.SUBMIT, Permission.TRIAGE}),
    Role.MAINTAINER: EVERYTHING - {Permission.ADMINISTER},
    Role.ADMIN: EVERYTHING,
}


def allowed(role: Role) -> frozenset[Permission]:
    """What a role allows."""
    return _ALLOWED[role]


def roles_with(permission: Permission) -> tuple[str, ...]:
    """The roles that allow something."""
    return tuple(role.value for role in Role if permission in _ALLOWED[role])


@dataclass(frozen=True, slots=True)
class Subject:
    """Whoever acts. `kind`: `user`, `token`, `forge`, or `system` for Gradproof itself; `id` is that of its row.

    `permissions` is the most that it may do anywhere (the scopes of a token). Where it may: `everywhere`; else in
    `project_id` alone, if it has one; else where `user_id` is a member, as far as the role goes. One with an
    `analysis_id` (the holder of a share link) sees that analysis and nothing else.
    """

    kind: str
    id: str
    name: str
    permissions: frozenset[Permission]
    everywhere: bool = False
    user_id: str | None = None
    project_id: str | None = None
    analysis_id: str | None = None

    @property
    def owner(self) -> str:
        """Whom belongs what this subject makes outside of projects: its user, or else its token."""
        return self.user_id or self.id


SYSTEM: Final = Subject("system", "", "Gradproof", EVERYTHING, everywhere=True)

_Statement = TypeVar("_Statement", bound=Select[*tuple[Any, ...]])


def readable_projects(subject: Subject, permission: Permission = Permission.READ) -> Select[str]:
    """The ids of the projects in which `subject` has `permission`, as a subquery."""
    return readable_by(select(ProjectRow.id), ProjectRow.id, subject, permission)


def readable_by(
    statement: _Statement,
    project_id: InstrumentedAttribute[str] | InstrumentedAttribute[str | None],
    subject: Subject,
    permission: Permission = Permission.READ,
) -> _Statement:
    """`statement`, without what belongs to projects in which `subject` lacks `permission`.

    `project_id` is the column that says which project a row belongs to; rows of no project are left out too, unless
    the subject may act everywhere.
    """
    return statement.where(belongs_to_readable(project_id, subject, permission))


def belongs_to_readable(
    project_id: InstrumentedAttribute[str] | InstrumentedAttribute[str | None],
    subject: Subject,
    permission: Permission = Permission.READ,
) -> ColumnElement[bool]:
    """The condition behind `readable_by`."""
    if permission not in subject.permissions:
        return ~true()
    if subject.everywhere:
        return true()
    if subject.project_id is not None:
        return project_id == subject.project_id
    if subject.user_id is None or subject.analysis_id is not None:
        return ~true()
    roles = roles_with(permission)
    of_organisation = (
        select(ProjectRow.id)
        .join(MembershipRow, MembershipRow.organisation_id == ProjectRow.organisation_id)
        .where(MembershipRow.user_id == subject.user_id, MembershipRow.role.in_(roles))
    )
    of_project = select(ProjectMembershipRow.project_id).where(
        ProjectMembershipRow.user_id == subject.user_id, ProjectMembershipRow.role.in_(roles)
    )
    return or_(project_id.in_(of_organisation), project_id.in_(of_project))
