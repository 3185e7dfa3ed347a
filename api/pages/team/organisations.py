"""Organisations: who belongs to them and which projects are theirs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Response

from api.pages.team.desk import Acting, Desk, Looking
from services.accounts.access import Permission
from services.problems import GradproofError

router = APIRouter()

_Text = Annotated[str, Form(max_length=200)]


@router.get("/organisations")
def organisations_page(desk: Looking) -> Response:
    """Those that the visitor belongs to."""
    return _organisations(desk)


@router.post("/organisations")
def make_organisation(desk: Acting, slug: _Text = "", name: _Text = "") -> Response:
    """Make one; for operators."""
    try:
        made = desk.context.organisations.create(desk.subject, slug.strip(), name.strip() or None)
    except GradproofError as error:
        return _organisations(desk, error, slug, name)
    return desk.done(f"/organisations/{made.slug}", f"{made.name} is there.")


@router.get("/organisations/{slug}")
def organisation_page(desk: Looking, slug: str) -> Response:
    """One, with its projects and members."""
    return _organisation(desk, slug)


@router.post("/organisations/{slug}/members")
def change_member(
    desk: Acting,
    slug: str,
    user: _Text = "",
    role: _Text = "",
    action: Annotated[Literal["set", "remove"], Form()] = "set",
) -> Response:
    """Make somebody a member, change the role, or let somebody go."""
    people = desk.context.organisations
    people.get(desk.subject, slug)
    try:
        if action == "remove":
            people.remove_member(desk.subject, slug, user.strip())
        else:
            people.set_member(desk.subject, slug, user.strip(), role)
    except GradproofError as error:
        return _organisation(desk, slug, error)
    text = f"{user} belongs to the organisation no more." if action == "remove" else f"{user} is {role} now."
    return desk.done(f"/organisations/{slug}", text)


def _organisations(desk: Desk, problem: GradproofError | None = None, slug: str = "", name: str = "") -> Response:
    return desk.page(
        "organisations.html",
        section="projects",
        organisations=desk.context.organisations.list(desk.subject, limit=200).items,
        may_create=desk.subject.everywhere and Permission.ADMINISTER in desk.subject.permissions,
        problem=problem,
        slug=slug,
        name=name,
    )


def _organisation(desk: Desk, slug: str, problem: GradproofError | None = None) -> Response:
    organisation = desk.context.organisations.get(desk.subject, slug)
    return desk.page(
        "organisation.html",
        section="projects",
        organisation=organisation,
        projects=desk.context.projects.list(desk.subject, organisation=slug, limit=100).items,
        members=desk.context.organisations.members(desk.subject, slug, limit=200).items,
        may_administer=Permission.ADMINISTER in organisation.permissions,
        problem=problem,
    )
