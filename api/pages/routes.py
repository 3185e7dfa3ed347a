"""The pages that anybody may see: rules and checks, and the packaged files."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Cookie, Depends, Response

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from api.context import ContextDependency
from api.errors import RouteNotFoundError
from api.pages.assets import assets
from api.pages.rendering import render
from api.pages.sessions import COOKIE, Visit, visit_of
from services.checks.documentation import all_checks
from services.checks.documentation import check as find_check

router = APIRouter(include_in_schema=False)

_KEPT = "public, max-age=31536000, immutable"


def _maybe(context: ContextDependency, session: Annotated[str | None, Cookie(alias=COOKIE)] = None) -> Visit | None:
    return visit_of(context, session)


# Who looks, if anybody is signed in: only the head of the page depends on it.
Anybody = Annotated[Visit | None, Depends(_maybe)]


@router.get("/rules")
def rules_page(visitor: Anybody) -> Response:
    """All rules and checks. Public: it says nothing about anybody's code."""
    return render(
        "rules.html", visitor=visitor, section="rules", current="/rules", rules=all_rules(), checks=all_checks()
    )


@router.get("/rules/{rule_id}")
def rule_page(rule_id: str, visitor: Anybody) -> Response:
    """What a rule does and why."""
    rule = find_rule(rule_id)
    if rule is None:
        raise RouteNotFoundError(f"There is no rule {rule_id[:100]!r}", rule=rule_id[:100])
    return render("rule.html", visitor=visitor, section="rules", rule=rule)


@router.get("/checks/{name}")
def check_page(name: str, visitor: Anybody) -> Response:
    """What a check runs and how it decides."""
    check = find_check(name)
    if check is None:
        raise RouteNotFoundError(f"There is no check {name[:100]!r}", check=name[:100])
    return render("check.html", visitor=visitor, section="rules", check=check)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A packaged file."""
    asset = assets().get(name)
    if asset is None:
        raise RouteNotFoundError(f"There is no file {name[:100]!r}", file=name[:100])
    return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _KEPT})


@router.get("/favicon.ico")
def favicon() -> Response:
    """The icon, for browsers that ask without having read a page."""
    icon = assets()["icon.svg"]
    return Response(icon.body, media_type=icon.media_type, headers={"Cache-Control": _KEPT})
