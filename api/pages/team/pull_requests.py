"""The page of a pull request: where it stands, what was written there, and why something was not."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.pages.team.addresses import PullRequestId
from api.pages.team.desk import Looking

router = APIRouter()


@router.get("/pull-requests/{pull_request_id}")
def pull_request_page(desk: Looking, pull_request_id: PullRequestId) -> Response:
    """One pull request. The first condition that does not hold explains why nothing was written."""
    details = desk.context.pull_requests.get(desk.subject, pull_request_id)
    return desk.page("pull_request.html", section="projects", details=details)
