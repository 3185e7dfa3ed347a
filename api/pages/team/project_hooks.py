"""The outgoing hooks of a project: addresses, secrets, what was sent, and sending it again."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Response

from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.project_settings import configurable
from api.parameters import ID_PATTERN
from services.problems import GradproofError
from services.projects.errors import HookNotFoundError
from services.projects.hooks import Hook
from services.projects.service import ProjectView

router = APIRouter()


@router.get("/projects/{project_id}/settings/hooks")
def hooks_page(desk: Looking, project_id: str) -> Response:
    """All of them."""
    return _hooks(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/hooks")
def add_hook(desk: Acting, project_id: str, url: Annotated[str, Form(max_length=2000)] = "") -> Response:
    """Tell an address from now on."""
    project = configurable(desk, project_id)
    try:
        hook = desk.context.hooks.create(desk.subject, project.id, url.strip())
    except GradproofError as error:
        return _hooks(desk, project, error, url)
    return desk.done(f"/projects/{project.id}/settings/hooks/{hook.id}", "Added. Its secret is below.")


@router.get("/projects/{project_id}/settings/hooks/{hook_id}")
def hook_page(
    desk: Looking, project_id: str, hook_id: str, before: Annotated[str | None, Query(pattern=ID_PATTERN)] = None
) -> Response:
    """One, with its secret and what it was told."""
    project = configurable(desk, project_id)
    return desk.page(
        "settings/hook.html",
        section="projects",
        project=project,
        part="Hooks",
        hook=_found(desk, project, hook_id),
        deliveries=desk.context.hooks.deliveries(desk.subject, project.id, hook_id, cursor=before, limit=25),
    )


@router.post("/projects/{project_id}/settings/hooks/{hook_id}/{action}")
def change_hook(
    desk: Acting, project_id: str, hook_id: str, action: Literal["enable", "disable", "remove"]
) -> Response:
    """Switch it on or off, or remove it."""
    hooks, base = desk.context.hooks, f"/projects/{project_id}/settings/hooks"
    if action == "remove":
        hooks.remove(desk.subject, project_id, hook_id)
        return desk.done(base, "The hook is removed.")
    hooks.set_disabled(desk.subject, project_id, hook_id, disabled=action == "disable")
    return desk.done(f"{base}/{hook_id}", f"The hook is {'off' if action == 'disable' else 'on'}.")


@router.post("/projects/{project_id}/settings/hooks/{hook_id}/deliveries/{delivery_id}/repeat")
def repeat_delivery(desk: Acting, project_id: str, hook_id: str, delivery_id: str) -> Response:
    """Make a call again."""
    desk.context.hooks.redeliver(desk.subject, project_id, hook_id, delivery_id)
    return desk.done(f"/projects/{project_id}/settings/hooks/{hook_id}", "It is sent again.")


def _hooks(desk: Desk, project: ProjectView, problem: GradproofError | None = None, url: str = "") -> Response:
    return desk.page(
        "settings/hooks.html",
        section="projects",
        project=project,
        part="Hooks",
        problem=problem,
        hooks=desk.context.hooks.list(desk.subject, project.id),
        url=url,
    )


def _found(desk: Desk, project: ProjectView, hook_id: str) -> Hook:
    hook = next((hook for hook in desk.context.hooks.list(desk.subject, project.id) if hook.id == hook_id), None)
    if hook is None:
        raise HookNotFoundError(f"there is no hook {hook_id[:50]!r} of this project", hook=hook_id[:50])
    return hook
