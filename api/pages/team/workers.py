"""The page of workers, queues and devices: what an operator looks at first, and a user whose analysis waits."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.pages.team.desk import Looking

router = APIRouter()


@router.get("/workers")
def workers_page(desk: Looking) -> Response:
    """Who works, what waits and since when, who has which GPU, what was lost."""
    workplace = desk.context.workplace.look(desk.subject)
    return desk.page("workers.html", section="workers", current="/workers", workplace=workplace)
