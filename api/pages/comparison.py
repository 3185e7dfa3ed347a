"""The page that compares two analyses: what is new, fixed, unchanged or has come back, and verdicts that changed."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from api.context import ContextDependency
from api.pages.places import head_of, of_analysis
from api.pages.rendering import render
from api.pages.selections import Cursor
from api.pages.sessions import Visitor
from api.parameters import ID_PATTERN, AnalysisId
from services.analyses.comparisons import Asked, ComparisonPart
from services.reports.document import CLASS_WORDS

router = APIRouter(include_in_schema=False)

_LISTED: Final = 25
_AnalysisOf = Annotated[str, Query(pattern=ID_PATTERN)]


@router.get("/compare")
def compare_page(
    *,
    context: ContextDependency,
    visitor: Visitor,
    base: _AnalysisOf,
    head: _AnalysisOf,
    part: ComparisonPart | None = None,
    after: Cursor = None,
) -> Response:
    """What changed from `base` to `head`; with `part` one of the lists alone, and where it goes on."""
    asked = Asked(part=part, cursor=after, limit=_LISTED)
    return render(
        "compare.html",
        visitor=visitor,
        section="analyses",
        comparison=context.results.compare(visitor.subject, base, head, asked),
        before=head_of(context, of_analysis(base, visitor)),
        after=head_of(context, of_analysis(head, visitor)),
        part=part,
        first=after is None,
        classes=CLASS_WORDS,
        address=lambda **more: f"/compare?{urlencode({'base': base, 'head': head} | more)}",
    )


@router.get("/analyses/{analysis_id}/compare")
def compare_with(analysis_id: AnalysisId, base: _AnalysisOf, _: Visitor) -> Response:
    """The same, from an address that names the later analysis first."""
    return RedirectResponse(f"/compare?{urlencode({'base': base, 'head': analysis_id})}", status_code=303)
