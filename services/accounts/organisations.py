"""Organisations, and who is what in them and in single projects.

Members see each other; only admins change anything, and one of an organisation's admins always stays. This module must
not know how anybody signs in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from services.accounts import organisation_repository as repository
from services.accounts.access import Permission, Role, Subject
from services.accounts.audit import note
from services.accounts.errors import (
    LastAdminError,
    MemberNotFoundError,
    OrganisationExistsError,
    OrganisationNameError,
    OrganisationNotFoundError,
    PermissionDeniedError,
    UnknownRoleError,
)
from services.accounts.models import MembershipRow, OrganisationRow, ProjectMembershipRow, UserRow
from services.accounts.users import named_user, require_installation
from services.database import Database
from services.projects.filing import named_project

PAGE_LIMIT: Final = 200
SLUG_PATTERN: Final = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class OrganisationView:
    """An organisation. `permissions` are those of whoever asked, in all of its projects."""

    id: str
    slug: str
    name: str
    created_at: datetime
    permissions: frozenset[Permission]


@dataclass(frozen=True, slots=True)
class OrganisationPage:
    """Some organisations in the order of their names; `next_cursor` asks for the next ones."""

    items: tuple[OrganisationView, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who belongs to an organisation or to a project."""

    user_id: str
    name: str
    display_name: str
    role: Role
    since: datetime
    disabled: bool


@dataclass(frozen=True, slots=True)
class MemberPage:
    """Some members in the order of their names; `next_cursor` asks for the next ones."""

    items: tuple[Member, ...]
    next_cursor: str | None


class OrganisationService:
    """Everything about organisations and memberships."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, subject: Subject, slug: str, name: str | None = None) -> OrganisationView:
        """Make an organisation; for operators. Whoever makes it is its first admin, unless it is no user.

        Raises `OrganisationNameError`, `OrganisationExistsError`, `PermissionDeniedError`.
        """
        require_installation(subject)
        if not re.fullmatch(SLUG_PATTERN, slug):
            raise OrganisationNameError(
                "an organisation's name has 1 to 40 lower-case letters, digits or '-'", organisation=slug[:64]
            )
        with self._database.unit_of_work() as uow:
            if repository.organisation_exists(uow.session, slug):
                raise OrganisationExistsError(f"there is an organisation {slug!r} already", organisation=slug)
            row = OrganisationRow(slug=slug, name=(name or slug)[:200])
            uow.session.add(row)
            try:
                uow.session.flush()
            except IntegrityError as error:
                raise OrganisationExistsError(
                    f"there is an organisation {slug!r} already", organisation=slug
                ) from error
            note(
                uow.session,
                subject,
                "organisation.create",
                "organisation",
                row.id,
                organisation_id=row.id,
                details={"name": slug},
            )
            if subject.user_id is not None:
                uow.session.add(MembershipRow(organisation_id=row.id, user_id=subject.user_id, role=Role.ADMIN))
                uow.session.flush()
            return _view(uow.session, subject, row)

    def get(self, subject: Subject, slug: str) -> OrganisationView:
        """An organisation by name. Raises `OrganisationNotFoundError`."""
        with self._database.reading() as session:
            return _view(session, subject, _found(session, subject, slug))

    def list(self, subject: Subject, *, cursor: str | None = None, limit: int = 50) -> OrganisationPage:
        """The organisations that `subject` belongs to, in the order of their names."""
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            rows = repository.organisations_after(session, subject, cursor or "", limit + 1)
            items = tuple(_view(session, subject, row) for row in rows[:limit])
            return OrganisationPage(items, items[-1].slug if len(rows) > limit else None)

    def members(self, subject: Subject, slug: str, *, cursor: str | None = None, limit: int = 100) -> MemberPage:
        """Who belongs to an organisation; for its members. Raises `OrganisationNotFoundError`."""
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            row = _found(session, subject, slug)
            return _page(repository.members_after(session, row.id, cursor or "", limit + 1), limit)

    def set_member(self, subject: Subject, slug: str, user: str, role: str) -> Member:
        """Make somebody a member, or change the role; for admins.

        Raises `OrganisationNotFoundError`, `PermissionDeniedError`, `UserNotFoundError`, `UnknownRoleError`, or
        `LastAdminError` if no admin would be left.
        """
        wanted = _role(role)
        with self._database.unit_of_work() as uow:
            organisation = _found(uow.session, subject, slug, Permission.ADMINISTER)
            repository.lock(uow.session, organisation.id)
            person = named_user(uow.session, user)
            row = uow.session.get(MembershipRow, (organisation.id, person.id))
            before = None if row is None else row.role
            if row is None:
                row = MembershipRow(organisation_id=organisation.id, user_id=person.id, role=wanted)
                uow.session.add(row)
            else:
                if wanted is not Role.ADMIN:
                    _keep_an_admin(uow.session, organisation, row)
                row.role = wanted
            uow.session.flush()
            _note_member(uow.session, subject, person, before, wanted, organisation_id=organisation.id)
            return _member(row, person)

    def remove_member(self, subject: Subject, slug: str, user: str) -> None:
        """Let somebody belong to an organisation no more; for admins, and for everybody of oneself.

        Raises as `set_member` does, and `MemberNotFoundError`.
        """
        with self._database.unit_of_work() as uow:
            organisation = _found(uow.session, subject, slug)
            repository.lock(uow.session, organisation.id)
            person = named_user(uow.session, user)
            if subject.kind != "user" or subject.user_id != person.id:
                _found(uow.session, subject, slug, Permission.ADMINISTER)
            row = uow.session.get(MembershipRow, (organisation.id, person.id))
            if row is None:
                raise MemberNotFoundError(f"{person.name!r} is no member of {slug!r}", user=person.name)
            _keep_an_admin(uow.session, organisation, row)
            _note_member(uow.session, subject, person, row.role, None, organisation_id=organisation.id)
            uow.session.delete(row)

    def project_members(
        self, subject: Subject, project: str, *, cursor: str | None = None, limit: int = 100
    ) -> MemberPage:
        """Who belongs to a project beyond its organisation. Raises `ProjectNotFoundError`."""
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            row = named_project(session, subject, project)
            return _page(repository.project_members_after(session, row.id, cursor or "", limit + 1), limit)

    def set_project_member(self, subject: Subject, project: str, user: str, role: str) -> Member:
        """Make somebody a member of one project, or change the role there; for admins.

        Raises `ProjectNotFoundError`, `PermissionDeniedError`, `UserNotFoundError`, `UnknownRoleError`.
        """
        wanted = _role(role)
        with self._database.unit_of_work() as uow:
            where = named_project(uow.session, subject, project, Permission.ADMINISTER)
            person = named_user(uow.session, user)
            row = uow.session.get(ProjectMembershipRow, (where.id, person.id))
            before = None if row is None else row.role
            if row is None:
                row = ProjectMembershipRow(project_id=where.id, user_id=person.id, role=wanted)
                uow.session.add(row)
            row.role = wanted
            uow.session.flush()
            _note_member(uow.session, subject, person, before, wanted, project_id=where.id)
            return _member(row, person)

    def remove_project_member(self, subject: Subject, project: str, user: str) -> None:
        """Let somebody belong to a project no more, as far as it was not by the organisation; for admins.

        Raises as `set_project_member` does, and `MemberNotFoundError`.
        """
        with self._database.unit_of_work() as uow:
            where = named_project(uow.session, subject, project, Permission.ADMINISTER)
            person = named_user(uow.session, user)
            row = uow.session.get(ProjectMembershipRow, (where.id, person.id))
            if row is None:
                raise MemberNotFoundError(f"{person.name!r} is no member of the project itself", user=person.name)
            _note_member(uow.session, subject, person, row.role, None, project_id=where.id)
            uow.session.delete(row)


def _found(session: Session, subject: Subject, slug: str, permission: Permission = Permission.READ) -> OrganisationRow:
    row = repository.find_organisation(session, subject, slug, Permission.READ)
    if row is None:
        raise OrganisationNotFoundError(f"there is no organisation {slug[:64]!r}", organisation=slug[:64])
    if permission is not Permission.READ and repository.find_organisation(session, subject, slug, permission) is None:
        raise PermissionDeniedError("this is for admins of the organisation", permission=permission.value)
    return row


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise UnknownRoleError(f"there is no role {name[:64]!r}: there are {known}", role=name[:64]) from None


def _keep_an_admin(session: Session, organisation: OrganisationRow, leaving: MembershipRow) -> None:
    can_sign_in = session.get_one(UserRow, leaving.user_id).disabled_at is None
    if leaving.role == Role.ADMIN and can_sign_in and repository.count_admins(session, organisation.id) < 2:
        raise LastAdminError(
            f"{organisation.slug!r} would have no admin left: make somebody else one first",
            organisation=organisation.slug,
        )


def _note_member(
    session: Session,
    subject: Subject,
    person: UserRow,
    before: str | None,
    after: str | None,
    *,
    organisation_id: str | None = None,
    project_id: str | None = None,
) -> None:
    action = "member.add" if before is None else "member.remove" if after is None else "member.change"
    note(
        session,
        subject,
        action,
        "user",
        person.id,
        organisation_id=organisation_id,
        project_id=project_id,
        details={"name": person.name, "from": before, "to": after},
    )


def _page(rows: Sequence[tuple[MembershipRow | ProjectMembershipRow, UserRow]], limit: int) -> MemberPage:
    items = tuple(_member(row, person) for row, person in rows[:limit])
    return MemberPage(items, items[-1].name if len(rows) > limit else None)


def _member(row: MembershipRow | ProjectMembershipRow, person: UserRow) -> Member:
    return Member(
        user_id=person.id,
        name=person.name,
        display_name=person.display_name,
        role=Role(row.role),
        since=row.created_at,
        disabled=person.disabled_at is not None,
    )


def _view(session: Session, subject: Subject, row: OrganisationRow) -> OrganisationView:
    permissions = frozenset(
        permission
        for permission in Permission
        if repository.find_organisation(session, subject, row.slug, permission) is not None
    )
    return OrganisationView(row.id, row.slug, row.name, row.created_at, permissions)
