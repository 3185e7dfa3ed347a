"""Which analysis a page is about, who looks at it, and below which address: a project's, or that of a shared link.

The pages of an analysis are the same for both; what a link shows can only be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.context import Context
from api.pages.sessions import Visit
from services.accounts import Permission, Subject
from services.analyses.model import AnalysisView
from services.analyses.overview import AnalysisSummary


@dataclass(frozen=True, slots=True)
class Place:
    """`base` is the address that all pages of the analysis lie below; `visitor` is None for who came by a link."""

    analysis_id: str
    base: str
    subject: Subject
    visitor: Visit | None


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of every page of an analysis shows. `may_submit`: it may be run again, and cancelled."""

    analysis: AnalysisView
    summary: AnalysisSummary
    base: str
    may_submit: bool
    shared: bool


def of_analysis(analysis_id: str, visitor: Visit) -> Place:
    """The place of an analysis for somebody who is signed in."""
    return Place(analysis_id, f"/analyses/{analysis_id}", visitor.subject, visitor)


def head_of(context: Context, place: Place) -> Head:
    """Raises `AnalysisNotFoundError`."""
    return Head(
        analysis=context.analyses.get(place.subject, place.analysis_id),
        summary=context.results.summary(place.subject, place.analysis_id),
        base=place.base,
        may_submit=place.visitor is not None and context.about.may(place.subject, place.analysis_id, Permission.SUBMIT),
        shared=place.visitor is None,
    )
