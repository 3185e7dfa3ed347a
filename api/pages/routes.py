"""The pages that anybody may see: rules and checks, and the packaged files."""

from __future__ import annotations

from fastapi import APIRouter, Response

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from api.errors import RouteNotFoundError
from api.pages.assets import assets
from api.pages.rendering import render
from services.checks.documentation import all_checks
from services.checks.documentation import check as find_check

router = APIRouter(include_in_schema=False)

_KEPT = "public, max-age=31536000, immutable"


@router.get("/rules")
def rules_page() -> Response:
    """All rules and checks. Public: it says nothing about anybody's code."""
    return render("rules.html", rules=all_rules(), checks=all_checks())


@router.get("/rules/{rule_id}")
def rule_page(rule_id: str) -> Response:
    """What a rule does and why."""
    rule = find_rule(rule_id)
    if rule is None:
        raise RouteNotFoundError(f"There is no rule {rule_id[:100]!r}", rule=rule_id[:100])
    return render("rule.html", rule=rule)


@router.get("/checks/{name}")
def check_page(name: str) -> Response:
    """What a check runs and how it decides."""
    check = find_check(name)
    if check is None:
        raise RouteNotFoundError(f"There is no check {name[:100]!r}", check=name[:100])
    return render("check.html", check=check)


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
