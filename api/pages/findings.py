"""The pages of the findings of an analysis: the list with its filters, and one finding with everything about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.context import Context, ContextDependency
from api.pages import notices
from api.pages.notices import Notice
from api.pages.places import Head, Place, head_of, of_analysis
from api.pages.rendering import render
from api.pages.selections import AskedFindings, Cursor, FindingQuestion
from api.pages.sessions import Visitor
from api.pages.team.people import assignable
from api.parameters import AnalysisId
from services.accounts import Permission
from services.checks.pages_repository import TargetSelection
from services.findings.pages_repository import FindingSelection
from services.reports.detail import FindingDetail, finding_detail, named_targets
from services.reports.document import FindingInfo, TargetInfo
from services.reports.sources import NoSources, Sources, shown_region
from services.reports.view import MarkedLine, marked_lines
from services.triage.errors import FindingNotFoundError, TargetNotFoundError
from services.triage.model import History, ProjectFinding
from services.triage.origins import Suggestion

router = APIRouter(include_in_schema=False)

_LISTED: Final = 25
# What may lie on the graph of a target beside the finding itself.
_MOST_MARKS: Final = 100
_MOST_EVENTS: Final = 50
_MOST_TARGETS: Final = 200


@dataclass(frozen=True, slots=True)
class ListedFinding:
    """A finding in a list, with the line it is at."""

    info: FindingInfo
    lines: tuple[MarkedLine, ...]


@dataclass(frozen=True, slots=True)
class Triage:
    """What the project knows of a finding. `may_decide`: the forms are shown; `suggested`: who might look after it."""

    project_id: str
    finding: ProjectFinding
    history: History
    suggested: tuple[Suggestion, ...]
    may_decide: bool


@router.get("/analyses/{analysis_id}/findings")
def findings_page(
    analysis_id: AnalysisId,
    context: ContextDependency,
    visitor: Visitor,
    question: AskedFindings,
    after: Cursor = None,
) -> Response:
    """The findings, filtered and page by page."""
    return findings(context, of_analysis(analysis_id, visitor), question, after)


@router.get("/analyses/{analysis_id}/findings/{fingerprint}")
def finding_page(
    *,
    analysis_id: AnalysisId,
    fingerprint: str,
    request: Request,
    context: ContextDependency,
    visitor: Visitor,
    question: AskedFindings,
    wanted_file: Annotated[str | None, Query(alias="download", max_length=40)] = None,
) -> Response:
    """One finding, with what the form before has done; or its script, as a file."""
    place = of_analysis(analysis_id, visitor)
    if wanted_file is not None:
        return repro(context, place, fingerprint, wanted_file)
    notice = notices.waiting(request, context.settings)
    response = finding(context, place, fingerprint, question, notice)
    if notice is not None:
        notices.told(response)
    return response


# ---------------------------------------------------------------------------------------------------- of a place


def findings(context: Context, place: Place, question: FindingQuestion, after: str | None) -> Response:
    """The list."""
    head = head_of(context, place)
    selection = question.selection()
    page = context.results.findings(place.subject, place.analysis_id, selection, limit=_LISTED, cursor=after)
    sources = context.sources(head.analysis.snapshot_digest)
    return render(
        "analysis_findings.html",
        head=head,
        visitor=place.visitor,
        section="analyses",
        question=question,
        path=f"{place.base}/findings",
        findings=listed(page.items, sources),
        total=context.about.count_findings(place.subject, place.analysis_id, selection),
        first=after is None,
        next_cursor=page.next_cursor,
        rules=context.about.rules(place.subject, place.analysis_id),
    )


def finding(
    context: Context, place: Place, fingerprint: str, question: FindingQuestion, notice: Notice | None = None
) -> Response:
    """One finding."""
    info = context.results.finding(place.subject, place.analysis_id, fingerprint)
    head = head_of(context, place)
    path = f"{place.base}/findings"
    triage = _triage(context, place, head, info)
    return render(
        "finding.html",
        head=head,
        visitor=place.visitor,
        section="analyses",
        detail=_detail(context, place, info, context.sources(head.analysis.snapshot_digest)),
        question=question,
        path=path,
        here=question.address(f"{path}/{info.fingerprint}"),
        told=notice,
        people=[]
        if triage is None or not triage.may_decide
        else assignable(context, place.subject, [triage.project_id]),
        neighbours=context.about.neighbours(place.subject, place.analysis_id, info.fingerprint, question.selection()),
        triage=triage,
    )


def repro(context: Context, place: Place, fingerprint: str, name: str) -> Response:
    """The script that shows a finding, as a file."""
    info = context.results.finding(place.subject, place.analysis_id, fingerprint)
    return script(_detail(context, place, info, NoSources()).repro, name)


def listed(items: tuple[FindingInfo, ...], sources: Sources) -> list[ListedFinding]:
    """Findings with the first line of each."""
    return [
        ListedFinding(info, marked_lines(sources, shown_region(sources, info), context=0, most=1)) for info in items
    ]


def script(text: str | None, name: str) -> Response:
    """A script as a file that no browser runs or shows as a page. Raises `FindingNotFoundError`."""
    if text is None or name != "repro.py":
        raise FindingNotFoundError(f"there is no file {name[:40]!r} here", file=name[:40])
    return Response(
        text.encode("utf-8", "replace"),
        media_type="text/plain; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="repro.py"'},
    )


def _detail(context: Context, place: Place, info: FindingInfo, sources: Sources) -> FindingDetail:
    beside = context.results.findings(
        place.subject, place.analysis_id, FindingSelection(path=info.path), limit=_MOST_MARKS
    )
    return finding_detail(info, _targets(context, place, info), beside.items, sources)


def _targets(context: Context, place: Place, info: FindingInfo) -> list[TargetInfo]:
    """Those that the evidence names, or else the one that the finding lies in."""
    found = []
    for name in named_targets(info) or _surrounding(context, place, info):
        try:
            found.append(context.results.target_named(place.subject, place.analysis_id, name).target)
        except TargetNotFoundError:
            continue  # evidence taken over from another analysis may name what this one lacks
    return found


def _surrounding(context: Context, place: Place, info: FindingInfo) -> tuple[str, ...]:
    of_file = context.results.grid(
        place.subject, place.analysis_id, TargetSelection(path=info.path), limit=_MOST_TARGETS
    )
    return tuple(row.name for row in of_file.items if f"{info.symbol}.".startswith(f"{row.name.replace(':', '.')}."))[
        :1
    ]


def _triage(context: Context, place: Place, head: Head, info: FindingInfo) -> Triage | None:
    """None for a shared link, an analysis without a project, and before the project has taken note of the finding."""
    project_id = head.summary.project_id
    if place.visitor is None or project_id is None:
        return None
    try:
        known = context.inbox.finding(place.subject, project_id, info.fingerprint)
        history = context.inbox.history(place.subject, project_id, info.fingerprint, limit=_MOST_EVENTS)
        suggested = context.triage.suggest_assignees(place.subject, project_id, info.fingerprint)
    except FindingNotFoundError:
        return None
    may_decide = context.about.may(place.subject, place.analysis_id, Permission.TRIAGE)
    return Triage(project_id, known, history, suggested, may_decide)
