"""The routes of the pages. What they show is fetched by use cases and prepared by `services.reports.view`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from api.context import ContextDependency
from api.downloads import report_download
from api.errors import AuthenticationRequiredError, RouteNotFoundError
from api.pages import sessions
from api.pages.assets import assets
from api.pages.rendering import render
from api.pages.sessions import FormSender, Visitor
from api.parameters import ID_PATTERN, AnalysisId
from services.analyses.errors import ReportUnavailableError
from services.checks.documentation import all_checks
from services.checks.documentation import check as find_check
from services.reports.formats import FORMATS
from services.reports.view import ReportView, view

router = APIRouter(include_in_schema=False)

_KEPT = "public, max-age=31536000, immutable"


@router.get("/")
def list_page(
    context: ContextDependency, visitor: Visitor, before: Annotated[str | None, Query(pattern=ID_PATTERN)] = None
) -> Response:
    """The analyses, the newest first."""
    page = context.analyses.list(visitor.subject, limit=25, cursor=before)
    return render(
        "analyses.html",
        page=page,
        first=before is None,
        here=f"/?before={before}" if before else "/",
        visitor=visitor,
        server=context.settings.public_url,
    )


@router.get("/analyses/{analysis_id}")
def analysis_page(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """How an analysis stands, with its report as far as there is one."""
    analysis = context.analyses.get(visitor.subject, analysis_id)
    prepared: ReportView | None
    try:
        report = context.analyses.report(visitor.subject, analysis_id)
        prepared = view(report, context.sources(report.snapshot.digest))
    except ReportUnavailableError:
        prepared = None
    return render("analysis.html", analysis=analysis, view=prepared, formats=FORMATS.values(), visitor=visitor)


@router.get("/analyses/{analysis_id}/progress")
def progress_fragment(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """The part of the page that the script keeps fresh."""
    return render("_progress.html", analysis=context.analyses.get(visitor.subject, analysis_id))


@router.get("/analyses/{analysis_id}/report/{format_name}")
def download(analysis_id: AnalysisId, format_name: str, context: ContextDependency, visitor: Visitor) -> Response:
    """The report as a file."""
    return report_download(context, visitor.subject, analysis_id, format_name)


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


@router.get("/sign-in")
def sign_in_page(goal: Annotated[str, Query(alias="next", max_length=500)] = "/") -> Response:
    """The form that takes a token."""
    return render("sign_in.html", goal=_local(goal), problem=None)


@router.post("/sign-in")
def sign_in(
    request: Request,
    context: ContextDependency,
    token: Annotated[str, Form(max_length=500)] = "",
    goal: Annotated[str, Form(alias="next", max_length=500)] = "/",
) -> Response:
    """Start a session for the owner of a token."""
    sessions.require_same_site(request)
    owner = context.tokens.authenticate(token.strip())
    if owner is None:
        problem = "This token is unknown, expired or revoked."
        return render("sign_in.html", status=401, goal=_local(goal), problem=problem)
    response = RedirectResponse(_local(goal), status_code=303)
    sessions.begin(response, context.settings, owner)
    return response


@router.get("/sign-in/{code}")
def follow_sign_in_link(code: str, context: ContextDependency) -> Response:
    """Start a session by a link of `gradproof serve`."""
    try:
        owner = sessions.follow_link(context, code)
    except AuthenticationRequiredError as error:
        return render("sign_in.html", status=401, goal="/", problem=f"{error.message}.".capitalize())
    response = RedirectResponse("/", status_code=303)
    sessions.begin(response, context.settings, owner)
    return response


@router.post("/sign-out")
def sign_out(_: FormSender) -> Response:
    """End the session."""
    response = RedirectResponse("/sign-in", status_code=303)
    sessions.end(response)
    return response


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


def _local(address: str) -> str:
    """A path of our own, so that signing in never leads to another site."""
    parts = urlsplit(address)
    harmless = (
        address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    )
    return address if harmless and "\\" not in address and address.isprintable() else "/"
