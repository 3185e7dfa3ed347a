"""Who may do what in a project: its members and its tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Response

from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.project_settings import configurable
from api.pages.team.token_forms import SCOPES, NewTokenForm
from services.accounts.access import Permission
from services.accounts.errors import OrganisationNotFoundError
from services.accounts.organisations import Member
from services.problems import GradproofError
from services.projects.service import ProjectView

router = APIRouter()

_Name = Annotated[str, Form(max_length=200)]


@router.get("/projects/{project_id}/settings/members")
def members_page(desk: Looking, project_id: str) -> Response:
    """Who belongs to the project, by itself and through its organisation."""
    return _members(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/members")
def change_member(
    desk: Acting,
    project_id: str,
    user: _Name = "",
    role: _Name = "",
    action: Annotated[Literal["set", "remove"], Form()] = "set",
) -> Response:
    """Make somebody a member, change the role, or let somebody go."""
    project = configurable(desk, project_id)
    people = desk.context.organisations
    try:
        if action == "remove":
            people.remove_project_member(desk.subject, project.id, user.strip())
        else:
            people.set_project_member(desk.subject, project.id, user.strip(), role)
    except GradproofError as error:
        return _members(desk, project, error)
    text = f"{user} belongs to the project no more." if action == "remove" else f"{user} is {role} now."
    return desk.done(f"/projects/{project.id}/settings/members", text)


@router.get("/projects/{project_id}/settings/tokens")
def tokens_page(desk: Looking, project_id: str) -> Response:
    """The tokens that act in this project only."""
    return _tokens(desk, configurable(desk, project_id))


@router.post("/projects/{project_id}/settings/tokens")
def make_token(desk: Acting, project_id: str, wanted: NewTokenForm) -> Response:
    """Make one. Its text is in the answer, this once; that is why it leads nowhere else."""
    project = configurable(desk, project_id)
    try:
        made = desk.context.tokens.issue(
            desk.subject, wanted.name, wanted.scope, lifetime=wanted.lifetime, project=project.id
        )
    except GradproofError as error:
        return _tokens(desk, project, problem=error)
    return _tokens(desk, project, fresh=made.text)


@router.post("/projects/{project_id}/settings/tokens/{token_id}/revoke")
def revoke_token(desk: Acting, project_id: str, token_id: str) -> Response:
    """Make one useless at once."""
    project = configurable(desk, project_id)
    token = desk.context.tokens.withdraw(desk.subject, token_id)
    return desk.done(f"/projects/{project.id}/settings/tokens", f"{token.name} is revoked.")


def _members(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    return desk.page(
        "settings/members.html",
        section="projects",
        project=project,
        part="Members",
        problem=problem,
        members=desk.context.organisations.project_members(desk.subject, project.id).items,
        inherited=_of_organisation(desk, project),
        may_administer=Permission.ADMINISTER in project.permissions,
    )


def _of_organisation(desk: Desk, project: ProjectView) -> tuple[Member, ...]:
    """None for whoever belongs to the project alone: who else is in its organisation is not told."""
    try:
        return desk.context.organisations.members(desk.subject, project.organisation).items
    except OrganisationNotFoundError:
        return ()


def _tokens(
    desk: Desk, project: ProjectView, *, fresh: str | None = None, problem: GradproofError | None = None
) -> Response:
    return desk.page(
        "settings/tokens.html",
        section="projects",
        project=project,
        part="Tokens",
        problem=problem,
        tokens=desk.context.tokens.list(desk.subject, project=project.id).items,
        fresh=fresh,
        scopes=SCOPES,
    )
