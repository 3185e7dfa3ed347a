"""Webhooks of forges: taken, written down, answered. Signed by their sender, so that no token is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from api.context import ContextDependency
from api.documents import answers, problems
from api.errors import BodyTooLargeError
from services.forges.receiving import LARGEST_WEBHOOK

router = APIRouter(prefix="/webhooks", tags=["webhooks"])


class WebhookTaken(BaseModel):
    """What became of a webhook."""

    outcome: Literal["queued", "ignored", "duplicate"] = Field(
        description="queued: a worker deals with it; ignored: it does not concern this service; duplicate: it came "
        "before, and nothing is done again"
    )
    delivery: str = Field(description="what the forge calls this delivery, or a digest of its body")


@router.post(
    "/{forge}",
    status_code=202,
    summary="What a forge calls",
    responses=answers({"outcome": "queued", "delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}, status=202)
    | problems(401, 404, 413, 422, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The webhook as the forge sends it; its signature covers these very bytes",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    },
)
async def receive(
    forge: Annotated[Literal["github", "gitlab"], Path()], request: Request, context: ContextDependency
) -> WebhookTaken:
    """Check the signature over the bytes as they came, write the webhook down, ring a worker, and answer."""
    context.webhooks.require_set(forge)
    body = await _bounded(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    received = await run_in_threadpool(context.webhooks.receive, forge, body, headers)
    return WebhookTaken(outcome=received.outcome, delivery=received.delivery)


async def _bounded(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_WEBHOOK:
            raise BodyTooLargeError(f"a webhook may have {LARGEST_WEBHOOK:,} bytes", limit=LARGEST_WEBHOOK)
    return bytes(body)
