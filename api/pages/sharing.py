"""Sharing an analysis by a link, and the pages that whoever follows such a link sees: the usual ones, read only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Response

from api.context import ContextDependency
from api.pages import analyses, findings, notices, targets
from api.pages.places import Place, head_of, of_analysis
from api.pages.rendering import render
from api.pages.selections import AskedFindings, AskedTargets, Cursor
from api.pages.team.desk import Acting, Looking
from api.parameters import AnalysisId
from services.projects.shares import LONGEST_DAYS

router = APIRouter(include_in_schema=False)


# ---------------------------------------------------------------------------------------------------- making links


@router.get("/analyses/{analysis_id}/shares")
def shares_page(analysis_id: AnalysisId, desk: Looking) -> Response:
    """The links that show an analysis, and the form that makes one."""
    notice = notices.waiting(desk.request, desk.context.settings)
    response = render(
        "analysis_shares.html",
        visitor=desk.visit,
        section="analyses",
        told=notice,
        here=desk.here,
        head=head_of(desk.context, of_analysis(analysis_id, desk.visit)),
        links=desk.context.shares.list(desk.subject, analysis_id),
        shared_at=f"{desk.context.settings.public_url.rstrip('/')}/shared",
        longest=LONGEST_DAYS,
    )
    if notice is not None:
        notices.told(response)
    return response


@router.post("/analyses/{analysis_id}/shares")
def share(analysis_id: AnalysisId, desk: Acting, days: Annotated[int, Form(ge=1, le=LONGEST_DAYS)] = 14) -> Response:
    """Make a link."""
    desk.context.shares.create(desk.subject, analysis_id, days)
    return desk.done(f"/analyses/{analysis_id}/shares", "The link is there: copy it from the list.")


@router.post("/analyses/{analysis_id}/shares/{link_id}/revoke")
def revoke(analysis_id: AnalysisId, link_id: str, desk: Acting) -> Response:
    """Have a link show nothing any more."""
    desk.context.shares.revoke(desk.subject, link_id)
    return desk.done(f"/analyses/{analysis_id}/shares", "The link shows nothing any more.")


# ---------------------------------------------------------------------------------------------------- following one


def _linked(code: str, context: ContextDependency) -> Place:
    subject = context.shares.visit(code)
    assert subject.analysis_id is not None
    return Place(subject.analysis_id, f"/shared/{code}", subject, None)


Linked = Annotated[Place, Depends(_linked)]
_File = Annotated[str | None, Query(alias="download", max_length=40)]


@router.get("/shared/{code}")
def shared_overview(place: Linked, context: ContextDependency) -> Response:
    """The overview."""
    return analyses.overview(context, place)


@router.get("/shared/{code}/progress")
def shared_progress(place: Linked, context: ContextDependency) -> Response:
    """How far it is."""
    return analyses.progress(context, place)


@router.get("/shared/{code}/left-out")
def shared_left_out(place: Linked, context: ContextDependency) -> Response:
    """What was not run."""
    return analyses.left_out(context, place)


@router.get("/shared/{code}/about")
def shared_about(place: Linked, context: ContextDependency) -> Response:
    """What it ran on."""
    return analyses.about(context, place)


@router.get("/shared/{code}/findings")
def shared_findings(
    place: Linked, context: ContextDependency, question: AskedFindings, after: Cursor = None
) -> Response:
    """The findings."""
    return findings.findings(context, place, question, after)


@router.get("/shared/{code}/findings/{fingerprint}")
def shared_finding(
    place: Linked, fingerprint: str, context: ContextDependency, question: AskedFindings, wanted_file: _File = None
) -> Response:
    """One finding, or its script."""
    if wanted_file is not None:
        return findings.repro(context, place, fingerprint, wanted_file)
    return findings.finding(context, place, fingerprint, question)


@router.get("/shared/{code}/targets")
def shared_targets(place: Linked, context: ContextDependency, question: AskedTargets, after: Cursor = None) -> Response:
    """The grid."""
    return targets.targets(context, place, question, after)


@router.get("/shared/{code}/targets/{which:path}")
def shared_target(
    place: Linked,
    which: str,
    context: ContextDependency,
    wanted_file: _File = None,
    check: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """One target, or the script of one of its checks."""
    return targets.target(context, place, which, wanted_file, check)
