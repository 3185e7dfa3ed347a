"""Outgoing hooks of a project: addresses that are told when an analysis has ended."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from api.authentication import Maintainer
from api.context import ContextDependency
from api.documents import answers, problems
from api.parameters import ID_PATTERN, ProjectKey
from api.schemas import Body, Page
from api.team_schemas import DELIVERY_EXAMPLE, HOOK_EXAMPLE, DeliveryOut, HookIn, HookOut, HookPatch
from services.projects.hooks import PAGE_LIMIT, Delivery, Hook

router = APIRouter(prefix="/projects/{project}/hooks", tags=["hooks"])

_GONE: dict[int | str, dict[str, Any]] = {204: {"description": "It is told nothing more"}}
_PAGE = {"items": [DELIVERY_EXAMPLE], "next_cursor": None}


class DeliveryPaging(Body):
    """Which part of the list."""

    cursor: str | None = Field(default=None, pattern=ID_PATTERN, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=PAGE_LIMIT)


@router.get("", summary="List hooks", responses=answers([HOOK_EXAMPLE]) | problems(401, 403, 404))
def list_hooks(project: ProjectKey, context: ContextDependency, caller: Maintainer) -> list[HookOut]:
    """All hooks of a project (there are at most 20), each with the secret that its calls are signed with."""
    return [_out(hook) for hook in context.hooks.list(caller, project)]


@router.post(
    "",
    status_code=201,
    summary="Make a hook",
    responses=answers(HOOK_EXAMPLE, status=201) | problems(401, 403, 404, 409, 422),
)
def create_hook(project: ProjectKey, wanted: HookIn, context: ContextDependency, caller: Maintainer) -> HookOut:
    """Have an address told when an analysis of the project has ended.

    The body of a call is `{"type": "analysis.finished", "timestamp": …, "data": {…}}`; `data` holds ids, status, gate,
    totals and links. Its headers are those of Standard Webhooks: `webhook-id`, `webhook-timestamp` and
    `webhook-signature` (`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`). Any 2xx takes it; anything else
    is tried again for a day, with growing waits; 410 disables the hook.
    """
    return _out(context.hooks.create(caller, project, wanted.url))


@router.patch(
    "/{hook_id}", summary="Pause a hook, or go on", responses=answers(HOOK_EXAMPLE) | problems(401, 403, 404, 422)
)
def update_hook(
    project: ProjectKey, hook_id: str, wanted: HookPatch, context: ContextDependency, caller: Maintainer
) -> HookOut:
    """A disabled hook is told nothing; what it missed is not told later."""
    return _out(context.hooks.set_disabled(caller, project, hook_id, disabled=wanted.disabled))


@router.delete(
    "/{hook_id}",
    status_code=204,
    summary="Remove a hook",
    response_class=Response,
    responses=_GONE | problems(401, 403, 404),
)
def remove_hook(project: ProjectKey, hook_id: str, context: ContextDependency, caller: Maintainer) -> None:
    """Tell an address nothing more."""
    context.hooks.remove(caller, project, hook_id)


@router.get(
    "/{hook_id}/deliveries", summary="What a hook was told", responses=answers(_PAGE) | problems(401, 403, 404, 422)
)
def list_deliveries(
    project: ProjectKey,
    hook_id: str,
    context: ContextDependency,
    caller: Maintainer,
    paging: Annotated[DeliveryPaging, Query()],
) -> Page[DeliveryOut]:
    """Its calls of the last 30 days, the newest first, each with what became of it."""
    page = context.hooks.deliveries(caller, project, hook_id, cursor=paging.cursor, limit=paging.limit)
    return Page(items=[_delivery(delivery) for delivery in page.items], next_cursor=page.next_cursor)


@router.post(
    "/{hook_id}/deliveries/{delivery_id}/repeat",
    summary="Make a call again",
    responses=answers(DELIVERY_EXAMPLE) | problems(401, 403, 404),
)
def repeat_delivery(
    project: ProjectKey, hook_id: str, delivery_id: str, context: ContextDependency, caller: Maintainer
) -> DeliveryOut:
    """Make a call again, from the first attempt on; `webhook-id` stays the same."""
    return _delivery(context.hooks.redeliver(caller, project, hook_id, delivery_id))


def _out(hook: Hook) -> HookOut:
    return HookOut(
        id=hook.id,
        url=hook.url,
        events=list(hook.events),
        secret=hook.secret,
        created_at=hook.created_at,
        disabled_at=hook.disabled_at,
    )


def _delivery(delivery: Delivery) -> DeliveryOut:
    return DeliveryOut(
        id=delivery.id,
        event=delivery.event,
        analysis=delivery.analysis_id,
        created_at=delivery.created_at,
        attempts=delivery.attempts,
        status=delivery.status,
        reason=delivery.reason,
        delivered_at=delivery.delivered_at,
        next_at=delivery.next_at,
    )
