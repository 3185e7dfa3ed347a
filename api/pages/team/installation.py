"""The installation, for its operators: how its parts are, and who may sign in."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Response

from api.pages.team.desk import Acting, Desk, Looking
from services.problems import GradproofError

router = APIRouter()

_Text = Annotated[str, Form(max_length=300)]


@router.get("/installation")
def installation_page(desk: Looking, after: Annotated[str, Query(max_length=100)] = "") -> Response:
    """All users, and the state of the parts."""
    return _installation(desk, after=after)


@router.post("/installation/users")
def make_user(
    desk: Acting,
    name: _Text = "",
    display_name: _Text = "",
    email: _Text = "",
    password: Annotated[str, Form(max_length=4096)] = "",
    *,
    operator: Annotated[bool, Form()] = False,
) -> Response:
    """Make an account."""
    try:
        made = desk.context.users.create(
            desk.subject,
            name,
            password=password or None,
            email=email.strip() or None,
            display_name=display_name.strip() or None,
            is_operator=operator,
        )
    except GradproofError as error:
        said = {"name": name, "display_name": display_name, "email": email, "operator": "true" if operator else ""}
        return _installation(desk, problem=error, said=said)
    return desk.done("/installation", f"{made.name} may sign in. A role in an organisation or project comes next.")


@router.post("/installation/users/{name}/{action}")
def change_user(desk: Acting, name: str, action: Literal["disable", "enable", "promote", "demote"]) -> Response:
    """Let somebody in no more or again, or do everything or no longer."""
    users = desk.context.users
    if action == "disable":
        return desk.done("/installation", f"{users.disable(desk.subject, name).name} is let in no more.")
    if action == "enable":
        return desk.done("/installation", f"{users.enable(desk.subject, name).name} may sign in again.")
    user = users.set_operator(desk.subject, name, operator=action == "promote")
    return desk.done("/installation", f"{user.name} is an operator{'' if user.is_operator else ' no more'}.")


def _installation(
    desk: Desk, *, after: str = "", problem: GradproofError | None = None, said: dict[str, str] | None = None
) -> Response:
    page = desk.context.users.list(desk.subject, cursor=after or None)
    return desk.page(
        "installation.html",
        users=page.items,
        following=f"/installation?after={page.next_cursor}" if page.next_cursor else None,
        states=desk.context.oversight.states(),
        problem=problem,
        said=said or {},
    )
