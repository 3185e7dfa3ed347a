"""The pages of the targets of an analysis: the grid with its filters, and one target with all its checks."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from api.context import Context, ContextDependency
from api.pages.findings import script
from api.pages.places import Place, head_of, of_analysis
from api.pages.rendering import render
from api.pages.selections import AskedTargets, Cursor, TargetQuestion
from api.pages.sessions import Visitor
from api.parameters import AnalysisId
from services.analyses.results import TargetEntry
from services.findings.pages_repository import FindingSelection
from services.reports import harnesses
from services.reports.detail import check_anchor, target_detail
from services.reports.grid import columns_of, counts_by_check, grid

router = APIRouter(include_in_schema=False)

# A row of twenty checks is 1.2 kB of HTML: a page stays well below 300 kB.
_ROWS: Final = 100
_MOST_MARKS: Final = 100
# Positions have as many digits at most; longer numbers are expensive to read.
_LONGEST_NUMBER: Final = 9


@router.get("/analyses/{analysis_id}/targets")
def targets_page(
    analysis_id: AnalysisId,
    context: ContextDependency,
    visitor: Visitor,
    question: AskedTargets,
    after: Cursor = None,
) -> Response:
    """Targets and checks at a glance."""
    return targets(context, of_analysis(analysis_id, visitor), question, after)


@router.get("/analyses/{analysis_id}/targets/{which:path}")
def target_page(
    *,
    analysis_id: AnalysisId,
    which: str,
    context: ContextDependency,
    visitor: Visitor,
    wanted_file: Annotated[str | None, Query(alias="download", max_length=40)] = None,
    check: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """One target, by its number or its name; or the script of one of its checks, as a file."""
    return target(context, of_analysis(analysis_id, visitor), which, wanted_file, check)


# ---------------------------------------------------------------------------------------------------- of a place


def targets(context: Context, place: Place, question: TargetQuestion, after: str | None) -> Response:
    """The grid."""
    head = head_of(context, place)
    particulars = context.about.particulars(place.subject, place.analysis_id)
    page = context.results.grid(place.subject, place.analysis_id, question.selection(), limit=_ROWS, cursor=after)
    return render(
        "analysis_targets.html",
        head=head,
        visitor=place.visitor,
        section="analyses",
        question=question,
        path=f"{place.base}/targets",
        grid=grid(page.items, columns_of(particulars.verdicts)),
        counts=counts_by_check(particulars.verdicts),
        first=after is None,
        next_cursor=page.next_cursor,
        reasons=[group.reason for group in (*particulars.not_run, *particulars.not_eligible)],
    )


def target(context: Context, place: Place, which: str, wanted_file: str | None, check: str) -> Response:
    """One target. `check` is the anchor of the check whose script is wanted."""
    entry = _entry(context, place, which)
    if wanted_file is not None:
        chosen = (item for item in entry.target.checks if check_anchor(item) == check)
        return script(next(chosen).repro if check in map(check_anchor, entry.target.checks) else None, wanted_file)
    head = head_of(context, place)
    found = context.results.findings(
        place.subject, place.analysis_id, FindingSelection(path=entry.target.path), limit=_MOST_MARKS
    ).items
    reason = entry.target.not_run_reason
    return render(
        "target.html",
        head=head,
        visitor=place.visitor,
        section="analyses",
        entry=entry,
        detail=target_detail(entry.target, found, context.sources(head.analysis.snapshot_digest)),
        findings=[item for item in found if item.evidence.get("target") == entry.target.name],
        anchor=check_anchor,
        advice=harnesses.advice(reason, entry.target) if reason else ("", ""),
    )


def _entry(context: Context, place: Place, which: str) -> TargetEntry:
    if which.isascii() and which.isdigit() and len(which) <= _LONGEST_NUMBER:
        return context.results.target(place.subject, place.analysis_id, int(which))
    return context.results.target_named(place.subject, place.analysis_id, which)
