"""The settings of a project, for its maintainers: what it is called, its gate, what the bot writes, its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.settings_forms import (
    ASSIGNMENTS,
    CONDITIONS,
    SWITCHES,
    gate_value,
    with_assignment,
    with_bot,
    with_gate,
)
from services.accounts.access import Permission
from services.accounts.errors import PermissionDeniedError
from services.problems import GradproofError
from services.projects.service import ProjectView
from services.projects.settings import ProjectSettings

router = APIRouter()

_Text = Annotated[str, Form(max_length=500)]


def configurable(desk: Desk, project_id: str) -> ProjectView:
    """The project, if the visitor may configure it. Raises `ProjectNotFoundError`, `PermissionDeniedError`."""
    project = desk.context.projects.get(desk.subject, project_id)
    if Permission.CONFIGURE not in project.permissions:
        raise PermissionDeniedError("the settings are for maintainers of the project", permission="configure")
    return project


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form whose names are not known beforehand; files are none."""
    form = await request.form()
    return {name: value for name, value in form.items() if isinstance(value, str)}


Fields = Annotated[dict[str, str], Depends(_fields)]


@router.get("/projects/{project_id}/settings")
def general_page(desk: Looking, project_id: str) -> Response:
    """Name, repository, main branch, and the end."""
    return _general(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings")
def change(
    desk: Acting, project_id: str, name: _Text = "", repository_url: _Text = "", default_branch: _Text = ""
) -> Response:
    """Change them."""
    project = configurable(desk, project_id)
    try:
        desk.context.projects.update(
            desk.subject,
            project.id,
            name=name.strip(),
            repository_url=repository_url.strip() or None,
            default_branch=default_branch.strip() or None,
        )
    except GradproofError as error:
        return _general(desk, project, error)
    return desk.done(f"/projects/{project.id}/settings", "Saved.")


@router.post("/projects/{project_id}/settings/archive")
def archive(desk: Acting, project_id: str) -> Response:
    """Take a project out of use."""
    project = desk.context.projects.update(desk.subject, project_id, archived=True)
    return desk.done(f"/projects/{project.id}", f"{project.name} is archived.")


@router.post("/projects/{project_id}/settings/restore")
def restore(desk: Acting, project_id: str) -> Response:
    """Take it into use again."""
    project = desk.context.projects.update(desk.subject, project_id, archived=False)
    return desk.done(f"/projects/{project.id}", f"{project.name} is in use again.")


@router.get("/projects/{project_id}/settings/gate")
def gate_page(desk: Looking, project_id: str) -> Response:
    """Which conditions count."""
    return _gate(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/gate")
def change_gate(desk: Acting, project_id: str, fields: Fields) -> Response:
    """Have other conditions count."""
    return _change(desk, project_id, fields, with_gate, _gate)


@router.get("/projects/{project_id}/settings/bot")
def bot_page(desk: Looking, project_id: str) -> Response:
    """What is written into pull requests."""
    return _bot(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/bot")
def change_bot(desk: Acting, project_id: str, fields: Fields) -> Response:
    """Have other things written."""
    return _change(desk, project_id, fields, with_bot, _bot)


@router.get("/projects/{project_id}/settings/triage")
def triage_page(desk: Looking, project_id: str) -> Response:
    """Whom new findings are given to."""
    return _triage(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/triage")
def change_triage(desk: Acting, project_id: str, fields: Fields) -> Response:
    """Have them given to others."""
    return _change(desk, project_id, fields, with_assignment, _triage)


def _change(
    desk: Desk,
    project_id: str,
    fields: Mapping[str, str],
    read: Callable[[ProjectSettings, Mapping[str, str]], ProjectSettings],
    page: Callable[[Desk, ProjectView, GradproofError | None], Response],
) -> Response:
    project = configurable(desk, project_id)
    try:
        desk.context.projects.update(desk.subject, project.id, settings=read(project.settings, fields))
    except GradproofError as error:
        return page(desk, project, error)
    return desk.done(desk.request.url.path, "Saved. It holds from the next analysis on.")


def _general(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    return desk.page("settings/general.html", section="projects", project=project, part="General", problem=problem)


def _gate(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    return desk.page(
        "settings/gate.html",
        section="projects",
        project=project,
        part="Gate",
        problem=problem,
        conditions=CONDITIONS,
        values={name: gate_value(project.settings.gate, name) for name, _, _ in CONDITIONS},
    )


def _bot(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    return desk.page(
        "settings/bot.html",
        section="projects",
        project=project,
        part="Bot",
        problem=problem,
        switches=SWITCHES,
        bot=project.settings.bot,
    )


def _triage(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    return desk.page(
        "settings/triage.html",
        section="projects",
        project=project,
        part="Triage",
        problem=problem,
        assignments=ASSIGNMENTS,
        assign=project.settings.assign,
    )
