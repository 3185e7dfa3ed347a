"""The page of a pull request: where it stands, what was written there, and why something was not."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.context import ContextDependency
from api.pages.sessions import Visitor
from api.pages.team.addresses import PullRequestId
from api.pages.team.rendering import team_page

router = APIRouter()


@router.get("/pull-requests/{pull_request_id}")
def pull_request_page(
    request: Request, context: ContextDependency, visitor: Visitor, pull_request_id: PullRequestId
) -> Response:
    """One pull request. The first condition that does not hold explains why nothing was written."""
    details = context.pull_requests.get(visitor.subject, pull_request_id)
    return team_page(request, context, visitor, "pull_request.html", details=details)
