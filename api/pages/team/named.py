"""Projects by their full name, which people type and write down. Comes behind all other addresses of projects."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from api.pages.team.desk import Looking

router = APIRouter()


@router.get("/projects/{organisation}/{name}")
def named_project(desk: Looking, organisation: str, name: str) -> Response:
    """Leads to the project."""
    project = desk.context.projects.get(desk.subject, f"{organisation}/{name}")
    return RedirectResponse(f"/projects/{project.id}", status_code=303)
