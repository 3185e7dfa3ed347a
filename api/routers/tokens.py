"""API tokens: listing, making, revoking."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from api.authentication import Administrator, Reader
from api.context import ContextDependency
from api.documents import answers, problems
from api.parameters import ID_PATTERN
from api.schemas import Body, Page, ProjectName
from api.team_schemas import FRESH_TOKEN_EXAMPLE, TOKEN_EXAMPLE, FreshToken, TokenIn, TokenOut
from services.accounts.service import LISTED, TokenInfo

router = APIRouter(prefix="/tokens", tags=["tokens"])

_PAGE = {"items": [TOKEN_EXAMPLE], "next_cursor": None}


class TokenFilters(Body):
    """Which tokens to list."""

    project: ProjectName | None = Field(default=None, description="only those of this project, by id or name")
    cursor: str | None = Field(default=None, pattern=ID_PATTERN, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=LISTED)


@router.get("", summary="List tokens", responses=answers(_PAGE) | problems(401, 403, 404, 422))
def list_tokens(
    context: ContextDependency, caller: Reader, filters: Annotated[TokenFilters, Query()]
) -> Page[TokenOut]:
    """Tokens that concern the caller, the newest first: the own ones, and those of projects that it maintains."""
    page = context.tokens.list(caller, project=filters.project, cursor=filters.cursor, limit=filters.limit)
    return Page(items=[TokenOut(**_fields(token)) for token in page.items], next_cursor=page.next_cursor)


@router.post(
    "",
    status_code=201,
    summary="Make a token",
    responses=answers(FRESH_TOKEN_EXAMPLE, status=201) | problems(401, 403, 404, 422),
)
def create_token(wanted: TokenIn, context: ContextDependency, caller: Administrator) -> FreshToken:
    """A token, whose text is shown this once. It may never do more than whoever makes it."""
    made = context.tokens.issue(
        caller,
        wanted.name,
        wanted.scope,
        lifetime=None if wanted.days is None else timedelta(days=wanted.days),
        project=wanted.project,
        installation=wanted.installation,
    )
    return FreshToken(token=made.text, **_fields(made.info))


@router.delete("/{token_id}", summary="Revoke a token", responses=answers(TOKEN_EXAMPLE) | problems(401, 403, 404))
def revoke_token(token_id: str, context: ContextDependency, caller: Administrator) -> TokenOut:
    """Make a token useless at once; sessions that began with it end. Doing it again changes nothing."""
    return TokenOut(**_fields(context.tokens.withdraw(caller, token_id)))


def _fields(token: TokenInfo) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "last_four": token.last_four,
        "scopes": sorted(scope.value for scope in token.scopes),
        "of": "user" if token.user_id else "project" if token.project_id else "installation",
        "project": token.project_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
