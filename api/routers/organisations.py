"""Organisations, which own projects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from api.authentication import Administrator, Reader
from api.context import ContextDependency
from api.documents import answers, problems
from api.presentation import API
from api.schemas import Body, Page
from api.team_schemas import ORGANISATION_EXAMPLE, NameCursor, OrganisationIn, OrganisationOut
from services.accounts.organisations import PAGE_LIMIT, OrganisationView

router = APIRouter(prefix="/organisations", tags=["organisations"])

_PAGE = {"items": [ORGANISATION_EXAMPLE], "next_cursor": None}


class NamePaging(Body):
    """Which part of a list that goes by names."""

    cursor: NameCursor | None = Field(default=None, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=PAGE_LIMIT)


@router.get("", summary="List organisations", responses=answers(_PAGE) | problems(401, 403, 422))
def list_organisations(
    context: ContextDependency, caller: Reader, paging: Annotated[NamePaging, Query()]
) -> Page[OrganisationOut]:
    """The organisations that the caller belongs to, in the order of their names."""
    page = context.organisations.list(caller, cursor=paging.cursor, limit=paging.limit)
    return Page(items=[_out(view) for view in page.items], next_cursor=page.next_cursor)


@router.post(
    "",
    status_code=201,
    summary="Make an organisation",
    responses=answers(ORGANISATION_EXAMPLE, status=201) | problems(401, 403, 409, 422),
)
def create_organisation(
    wanted: OrganisationIn, response: Response, context: ContextDependency, caller: Administrator
) -> OrganisationOut:
    """An organisation; for operators of the installation. A user who makes one is its first admin."""
    made = context.organisations.create(caller, wanted.name, wanted.title)
    response.headers["Location"] = f"{API}/organisations/{made.slug}"
    return _out(made)


@router.get(
    "/{organisation}", summary="One organisation", responses=answers(ORGANISATION_EXAMPLE) | problems(401, 403, 404)
)
def get_organisation(organisation: str, context: ContextDependency, caller: Reader) -> OrganisationOut:
    """An organisation by name, and what the caller may do in all of its projects."""
    return _out(context.organisations.get(caller, organisation))


def _out(view: OrganisationView) -> OrganisationOut:
    return OrganisationOut(
        name=view.slug,
        title=view.name,
        created_at=view.created_at,
        permissions=sorted(permission.value for permission in view.permissions),
    )
