"""The audit log, for those who have to answer for it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.authentication import Maintainer
from api.context import ContextDependency
from api.documents import answers, problems
from api.parameters import ID_PATTERN
from api.schemas import Body, Page, ProjectName
from api.team_schemas import AUDIT_EXAMPLE, Actor, AuditOut, Object
from services.accounts.audit import PAGE_LIMIT, AuditEvent
from services.accounts.audit_repository import AuditFilter

router = APIRouter(prefix="/audit", tags=["audit"])

_PAGE = {"items": [AUDIT_EXAMPLE], "next_cursor": None}


class AuditFilters(Body):
    """Which lines to list."""

    project: ProjectName | None = Field(default=None, description="only those of this project, by id or name")
    organisation: str | None = Field(default=None, max_length=40, description="only those of this organisation")
    actor: str | None = Field(default=None, pattern=ID_PATTERN, description="only what this user or token did")
    action: str | None = Field(
        default=None, max_length=60, description="`member.change`, or `member` for all that is done with members"
    )
    cursor: str | None = Field(default=None, pattern=ID_PATTERN, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=PAGE_LIMIT)


@router.get("", summary="The audit log", responses=answers(_PAGE) | problems(401, 403, 404, 422))
def list_audit(
    context: ContextDependency, caller: Maintainer, filters: Annotated[AuditFilters, Query()]
) -> Page[AuditOut]:
    """What was done, the newest first: in projects that the caller maintains, in organisations that it administers."""
    wanted = AuditFilter(
        project_id=None if filters.project is None else context.projects.get(caller, filters.project).id,
        organisation_id=(
            None if filters.organisation is None else context.organisations.get(caller, filters.organisation).id
        ),
        actor_id=filters.actor,
        action=filters.action,
    )
    page = context.audit.list(caller, wanted=wanted, cursor=filters.cursor, limit=filters.limit)
    return Page(items=[_out(event) for event in page.items], next_cursor=page.next_cursor)


def _out(event: AuditEvent) -> AuditOut:
    return AuditOut(
        id=event.id,
        at=event.at,
        actor=Actor(kind=event.actor_kind, id=event.actor_id, name=event.actor_name),
        action=event.action,
        object=Object(kind=event.object_kind, id=event.object_id),
        organisation=event.organisation_id,
        project=event.project_id,
        project_name=event.project,
        details=dict(event.details),
    )
