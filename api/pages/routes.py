"""The routes of the pages. What they show is fetched by use cases and prepared by `services.reports.view`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from api.context import ContextDependency
from api.downloads import report_download
from api.errors import RouteNotFoundError
from api.pages.assets import assets
from api.pages.rendering import render
from api.pages.sessions import Visitor
from api.parameters import ID_PATTERN, AnalysisId
from services.analyses.errors import ReportUnavailableError
from services.checks.documentation import all_checks
from services.checks.documentation import check as find_check
from services.reports.formats import FORMATS
from services.reports.view import ReportView, view

router = APIRouter(include_in_schema=False)

_KEPT = "public, max-age=31536000, immutable"


@router.get("/analyses")
def list_page(
    context: ContextDependency, visitor: Visitor, before: Annotated[str | None, Query(pattern=ID_PATTERN)] = None
) -> Response:
    """The analyses, the newest first."""
    page = context.analyses.list(visitor.subject, limit=25, cursor=before)
    return render(
        "analyses.html",
        page=page,
        first=before is None,
        here=f"/analyses?before={before}" if before else "/analyses",
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
