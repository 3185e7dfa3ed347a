"""The page of workers, queues and devices: what an operator looks at first, and a user whose analysis waits."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.context import ContextDependency
from api.pages.sessions import Visitor
from api.pages.team.rendering import team_page

router = APIRouter()


@router.get("/workers")
def workers_page(request: Request, context: ContextDependency, visitor: Visitor) -> Response:
    """Who works, what waits and since when, who has which GPU, what was lost."""
    workplace = context.workplace.look(visitor.subject)
    return team_page(request, context, visitor, "workers.html", workplace=workplace)
