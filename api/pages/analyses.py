"""The pages of an analysis but those of its findings and targets: the list, the overview, what was left out, about.

Each page is a function of a `Place`, so that a shared link shows the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from api.context import Context, ContextDependency
from api.downloads import report_download
from api.pages.places import Head, Place, head_of, of_analysis
from api.pages.rendering import render
from api.pages.sessions import FormSender, Visitor
from api.parameters import ID_PATTERN, AnalysisId
from services.analyses.errors import ReportUnavailableError
from services.analyses.totals import Totals
from services.checks.pages_repository import TargetSelection
from services.findings.pages_repository import FindingSelection
from services.reports import harnesses
from services.reports.environment import environment_facts
from services.reports.formats import FORMATS
from services.reports.grid import columns_of, counts_by_check, grid

router = APIRouter(include_in_schema=False)

# What is shown whole on the overview; beyond that, what somebody has to look at first.
_FEW_FINDINGS: Final = 12
_FEW_TARGETS: Final = 60
_LISTED: Final = 25
_COMPARABLE: Final = 20


@router.get("/analyses")
def list_page(
    context: ContextDependency, visitor: Visitor, before: Annotated[str | None, Query(pattern=ID_PATTERN)] = None
) -> Response:
    """The analyses, the newest first."""
    page = context.results.summaries(visitor.subject, limit=_LISTED, cursor=before)
    return render(
        "analyses.html",
        page=page,
        first=before is None,
        here=f"/analyses?before={before}" if before else "/analyses",
        visitor=visitor,
        section="analyses",
        current="/analyses" if before is None else "",
        server=context.settings.public_url,
    )


@router.get("/analyses/{analysis_id}")
def analysis_page(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """How an analysis stands and what came of it, at a glance."""
    return overview(context, of_analysis(analysis_id, visitor))


@router.get("/analyses/{analysis_id}/progress")
def progress_fragment(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """The part of the page that the script keeps fresh."""
    return progress(context, of_analysis(analysis_id, visitor))


@router.get("/analyses/{analysis_id}/left-out")
def left_out_page(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """What was not run, and why."""
    return left_out(context, of_analysis(analysis_id, visitor))


@router.get("/analyses/{analysis_id}/about")
def about_page(analysis_id: AnalysisId, context: ContextDependency, visitor: Visitor) -> Response:
    """What it ran on."""
    return about(context, of_analysis(analysis_id, visitor))


@router.get("/analyses/{analysis_id}/report/{format_name}")
def download(analysis_id: AnalysisId, format_name: str, context: ContextDependency, visitor: Visitor) -> Response:
    """The report as a file."""
    return report_download(context, visitor.subject, analysis_id, format_name)


@router.post("/analyses/{analysis_id}/rerun")
def rerun(analysis_id: AnalysisId, context: ContextDependency, visitor: FormSender) -> Response:
    """Run the same source once more, without taking anything over."""
    submitted = context.analyses.rerun(visitor.subject, analysis_id)
    return RedirectResponse(f"/analyses/{submitted.analysis_id}", status_code=303)


@router.post("/analyses/{analysis_id}/cancel")
def cancel(analysis_id: AnalysisId, context: ContextDependency, visitor: FormSender) -> Response:
    """Stop it."""
    context.analyses.cancel(visitor.subject, analysis_id)
    return RedirectResponse(f"/analyses/{analysis_id}", status_code=303)


# ---------------------------------------------------------------------------------------------------- of a place


def overview(context: Context, place: Place) -> Response:
    """The gate, the figures, the findings and failing targets that come first."""
    head = head_of(context, place)
    try:
        particulars = context.about.particulars(place.subject, place.analysis_id)
    except ReportUnavailableError:
        return render("analysis_waiting.html", head=head, **_shared(head, place), running=())
    totals = head.summary.totals
    columns = columns_of(particulars.verdicts)
    counted = sum(totals.findings.all.values()) if totals else _count(context, place)
    found = totals.targets.found + sum(totals.targets.not_eligible.values()) if totals else None
    few = found is not None and found <= _FEW_TARGETS
    wanted = TargetSelection(run=True) if few or not _failing(particulars.verdicts) else TargetSelection(verdict="fail")
    first = _first_selection(counted, totals, compared=head.analysis.base_id is not None)
    rows = context.results.grid(place.subject, place.analysis_id, wanted, limit=_FEW_TARGETS)
    return render(
        "analysis.html",
        head=head,
        **_shared(head, place),
        particulars=particulars,
        totals=totals,
        counted=counted,
        first=first,
        findings=context.results.findings(place.subject, place.analysis_id, first, limit=_FEW_FINDINGS).items,
        grid=grid(rows.items, columns, failing_first=True),
        only_failing=wanted.verdict == "fail",
        more_targets=rows.next_cursor is not None,
        counts=counts_by_check(particulars.verdicts),
        running=_running(context, place, head),
        comparable=_comparable(context, place, head),
    )


def progress(context: Context, place: Place) -> Response:
    """How far it is."""
    head = head_of(context, place)
    return render("_progress.html", head=head, running=_running(context, place, head))


def left_out(context: Context, place: Place) -> Response:
    """Targets and checks that say nothing, by reason, with what would mend it."""
    head = head_of(context, place)
    particulars = context.about.particulars(place.subject, place.analysis_id)
    return render(
        "analysis_left_out.html",
        head=head,
        **_shared(head, place),
        particulars=particulars,
        not_run=[(group, *harnesses.advice(group.reason, group.first)) for group in particulars.not_run],
        unsaid=context.about.unsaid_checks(place.subject, place.analysis_id),
    )


def about(context: Context, place: Place) -> Response:
    """Source, versions, devices, environment, the repository's own examples, what its comments silence."""
    head = head_of(context, place)
    particulars = context.about.particulars(place.subject, place.analysis_id)
    return render(
        "analysis_about.html",
        head=head,
        **_shared(head, place),
        particulars=particulars,
        environment=tuple(environment_facts(particulars.tool.environment)),
    )


def _shared(head: Head, place: Place) -> dict[str, Any]:
    return {"visitor": place.visitor, "section": "analyses", "formats": () if head.shared else tuple(FORMATS.values())}


def _count(context: Context, place: Place) -> int:
    return context.about.count_findings(place.subject, place.analysis_id)


def _failing(verdicts: Mapping[str, Mapping[str, int]]) -> bool:
    return any(counts.get("fail") for counts in verdicts.values())


def _first_selection(counted: int, totals: Totals | None, *, compared: bool) -> FindingSelection:
    """All of a few findings; of many the new ones, or else those of the gravest severity that there is."""
    if counted <= _FEW_FINDINGS or totals is None:
        return FindingSelection()
    if compared and any(totals.findings.new.values()):
        return FindingSelection(is_new=True)
    return FindingSelection(
        severity=next((word for word in ("error", "warning") if totals.findings.all.get(word)), None)
    )


def _running(context: Context, place: Place, head: Head) -> tuple[tuple[str, str], ...]:
    return () if head.analysis.ended else context.about.running(place.subject, place.analysis_id)


def _comparable(context: Context, place: Place, head: Head) -> list[tuple[str, str]]:
    """The newest analyses of the same project, to compare this one with."""
    if head.shared or head.summary.project_id is None:
        return []
    page = context.results.summaries(place.subject, project=head.summary.project_id, limit=_COMPARABLE)
    return [
        (other.id, f"{other.created_at:%Y-%m-%d %H:%M}, {(other.commit or other.source_kind)[:10]}, {other.id[-6:]}")
        for other in page.items
        if other.id != place.analysis_id and other.ended
    ]
