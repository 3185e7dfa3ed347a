"""Who is what in an organisation, or in one project."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api.authentication import Administrator, Reader
from api.context import ContextDependency
from api.documents import answers, problems
from api.parameters import ProjectKey
from api.routers.organisations import NamePaging
from api.schemas import Page
from api.team_schemas import MEMBER_EXAMPLE, MemberIn, MemberOut
from services.accounts.organisations import Member, MemberPage

router = APIRouter(tags=["members"])

_PAGE = {"items": [MEMBER_EXAMPLE], "next_cursor": None}
_GONE: dict[int | str, dict[str, Any]] = {204: {"description": "No member any more"}}
_OF_ORGANISATION = "/organisations/{organisation}/members"
_OF_PROJECT = "/projects/{project}/members"


@router.get(
    _OF_ORGANISATION, summary="Members of an organisation", responses=answers(_PAGE) | problems(401, 403, 404, 422)
)
def list_members(
    organisation: str, context: ContextDependency, caller: Reader, paging: Annotated[NamePaging, Query()]
) -> Page[MemberOut]:
    """Who belongs to an organisation, in the order of names; for its members."""
    return _page(context.organisations.members(caller, organisation, cursor=paging.cursor, limit=paging.limit))


@router.put(
    _OF_ORGANISATION + "/{user}",
    summary="Add a member, or change the role",
    responses=answers(MEMBER_EXAMPLE) | problems(401, 403, 404, 409, 422),
)
def set_member(
    organisation: str, user: str, wanted: MemberIn, context: ContextDependency, caller: Administrator
) -> MemberOut:
    """Give somebody a role in all projects of an organisation; for its admins. One admin always stays."""
    return _out(context.organisations.set_member(caller, organisation, user, wanted.role))


@router.delete(
    _OF_ORGANISATION + "/{user}",
    status_code=204,
    summary="Remove a member",
    response_class=Response,
    responses=_GONE | problems(401, 403, 404, 409),
)
def remove_member(organisation: str, user: str, context: ContextDependency, caller: Administrator) -> None:
    """Take somebody out of an organisation; for its admins. What single projects say of them stays."""
    context.organisations.remove_member(caller, organisation, user)


@router.get(_OF_PROJECT, summary="Members of a project", responses=answers(_PAGE) | problems(401, 403, 404, 422))
def list_project_members(
    project: ProjectKey, context: ContextDependency, caller: Reader, paging: Annotated[NamePaging, Query()]
) -> Page[MemberOut]:
    """Who has a role in one project beyond that in its organisation."""
    return _page(context.organisations.project_members(caller, project, cursor=paging.cursor, limit=paging.limit))


@router.put(
    _OF_PROJECT + "/{user}",
    summary="Add a member of a project, or change the role",
    responses=answers(MEMBER_EXAMPLE) | problems(401, 403, 404, 422),
)
def set_project_member(
    project: ProjectKey, user: str, wanted: MemberIn, context: ContextDependency, caller: Administrator
) -> MemberOut:
    """Give somebody a role in one project; of it and the one in the organisation, the greater counts."""
    return _out(context.organisations.set_project_member(caller, project, user, wanted.role))


@router.delete(
    _OF_PROJECT + "/{user}",
    status_code=204,
    summary="Remove a member of a project",
    response_class=Response,
    responses=_GONE | problems(401, 403, 404),
)
def remove_project_member(project: ProjectKey, user: str, context: ContextDependency, caller: Administrator) -> None:
    """Take a role in one project away; the role in its organisation stays."""
    context.organisations.remove_project_member(caller, project, user)


def _page(page: MemberPage) -> Page[MemberOut]:
    return Page(items=[_out(member) for member in page.items], next_cursor=page.next_cursor)


def _out(member: Member) -> MemberOut:
    return MemberOut(
        user=member.name,
        display_name=member.display_name,
        role=member.role.value,
        since=member.since,
        disabled=member.disabled,
    )
