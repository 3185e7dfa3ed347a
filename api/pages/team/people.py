"""Whom a finding can be given to: the members of the projects at hand."""

from __future__ import annotations

from collections.abc import Collection

from api.context import Context
from services.accounts.access import Subject
from services.accounts.errors import OrganisationNotFoundError
from services.accounts.organisations import Member

_PROJECTS = 20


def assignable(context: Context, subject: Subject, project_ids: Collection[str]) -> list[tuple[str, str]]:
    """(id, name) of the members of these projects, of twenty at most, by name."""
    members: dict[str, Member] = {}
    organisations: set[str] = set()
    for project_id in sorted(project_ids)[:_PROJECTS]:
        for member in context.organisations.project_members(subject, project_id).items:
            members[member.user_id] = member
        organisations.add(context.projects.get(subject, project_id).organisation)
    for slug in organisations:
        for member in _of_organisation(context, subject, slug):
            members[member.user_id] = member
    here = [member for member in members.values() if not member.disabled]
    return [(member.user_id, member.display_name) for member in sorted(here, key=lambda item: item.display_name)]


def _of_organisation(context: Context, subject: Subject, slug: str) -> tuple[Member, ...]:
    """None for whoever belongs to a project alone: who else is in its organisation is not told."""
    try:
        return context.organisations.members(subject, slug).items
    except OrganisationNotFoundError:
        return ()
