"""Queries over organisations and who belongs to them. Never commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, false, func, select, true
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Role, Subject, roles_with
from services.accounts.models import MembershipRow, OrganisationRow, ProjectMembershipRow, UserRow


def organisations_of(subject: Subject, permission: Permission) -> Select[str]:
    """The ids of the organisations in all of whose projects `subject` has `permission`, as a subquery."""
    statement = select(OrganisationRow.id)
    if permission not in subject.permissions or subject.project_id or subject.analysis_id:
        return statement.where(false())
    if subject.everywhere:
        return statement.where(true())
    return statement.join(MembershipRow, MembershipRow.organisation_id == OrganisationRow.id).where(
        MembershipRow.user_id == subject.user_id, MembershipRow.role.in_(roles_with(permission))
    )


def find_organisation(session: Session, subject: Subject, slug: str, permission: Permission) -> OrganisationRow | None:
    """The organisation with this name, if `subject` has `permission` in all of it."""
    return session.scalars(
        select(OrganisationRow).where(
            OrganisationRow.slug == slug, OrganisationRow.id.in_(organisations_of(subject, permission))
        )
    ).one_or_none()


def organisation_exists(session: Session, slug: str) -> bool:
    """Whether the name is taken, whoever asks."""
    return session.scalar(select(OrganisationRow.id).where(OrganisationRow.slug == slug)) is not None


def first_organisations(session: Session, subject: Subject, permission: Permission) -> Sequence[OrganisationRow]:
    """Up to two organisations in all of which `subject` has `permission`: enough to know whether it is just one."""
    return session.scalars(
        select(OrganisationRow)
        .where(OrganisationRow.id.in_(organisations_of(subject, permission)))
        .order_by(OrganisationRow.id)
        .limit(2)
    ).all()


def organisations_after(session: Session, subject: Subject, slug: str, limit: int) -> Sequence[OrganisationRow]:
    """Up to `limit` organisations of `subject` whose names come after `slug`, in their order."""
    return session.scalars(
        select(OrganisationRow)
        .where(OrganisationRow.slug > slug, OrganisationRow.id.in_(organisations_of(subject, Permission.READ)))
        .order_by(OrganisationRow.slug)
        .limit(limit)
    ).all()


def lock(session: Session, organisation_id: str) -> None:
    """Hold an organisation until the transaction ends, so that its last two admins can't leave at once."""
    session.execute(select(OrganisationRow.id).where(OrganisationRow.id == organisation_id).with_for_update())


def count_admins(session: Session, organisation_id: str) -> int:
    """How many admins of an organisation can still sign in."""
    statement = (
        select(func.count())
        .select_from(MembershipRow)
        .join(UserRow, UserRow.id == MembershipRow.user_id)
        .where(
            MembershipRow.organisation_id == organisation_id,
            MembershipRow.role == Role.ADMIN,
            UserRow.disabled_at.is_(None),
        )
    )
    return session.scalar(statement) or 0


def members_after(
    session: Session, organisation_id: str, name: str, limit: int
) -> Sequence[tuple[MembershipRow, UserRow]]:
    """Up to `limit` members of an organisation whose names come after `name`, in their order."""
    rows = session.execute(
        select(MembershipRow, UserRow)
        .join(UserRow, UserRow.id == MembershipRow.user_id)
        .where(MembershipRow.organisation_id == organisation_id, UserRow.name > name)
        .order_by(UserRow.name)
        .limit(limit)
    )
    return [(row, person) for row, person in rows]


def project_members_after(
    session: Session, project_id: str, name: str, limit: int
) -> Sequence[tuple[ProjectMembershipRow, UserRow]]:
    """Up to `limit` members of one project whose names come after `name`, in their order."""
    rows = session.execute(
        select(ProjectMembershipRow, UserRow)
        .join(UserRow, UserRow.id == ProjectMembershipRow.user_id)
        .where(ProjectMembershipRow.project_id == project_id, UserRow.name > name)
        .order_by(UserRow.name)
        .limit(limit)
    )
    return [(row, person) for row, person in rows]
