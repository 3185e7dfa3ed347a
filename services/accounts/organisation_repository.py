"""Queries over organisations and who belongs to them. Never commits."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, false, select, true
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, roles_with
from services.accounts.models import MembershipRow, OrganisationRow


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
