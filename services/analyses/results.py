"""What came of an analysis, part by part: findings, targets, checks, the grid, and analyses in one line each.

Reads as many rows as it shows, so that a page of an analysis with 20,000 findings costs what one of ten costs; only the
report as a whole (`AnalysisService.report`) loads all of it. This module must not know HTTP, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.analyses import overview_repository as overviews
from services.analyses.baselines import find_baseline
from services.analyses.comparisons import Asked, compared
from services.analyses.errors import AnalysisNotFoundError, ReportUnavailableError
from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow, Purpose
from services.analyses.overview import AnalysisSummary
from services.checks import pages_repository as checks
from services.checks.pages_repository import CheckSelection, GridRow, PlacedTarget, TargetCheck, TargetSelection
from services.database import Database
from services.findings import pages_repository as findings
from services.findings.pages_repository import FindingSelection
from services.projects.errors import ProjectNotFoundError
from services.reports.build import finding_info, target_info
from services.reports.compare import Comparison
from services.reports.document import FindingInfo, TargetInfo
from services.reports.listing import Slice
from services.settings import Settings
from services.triage.errors import FindingNotFoundError, TargetNotFoundError
from services.triage.projects import project_called

_ANY_FINDING: Final = FindingSelection()
_ANY_TARGET: Final = TargetSelection()
_ANY_CHECK: Final = CheckSelection()
_ALL: Final = Asked()


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A target as reports know it; `position` is what addresses of pages name it by."""

    position: int
    target: TargetInfo


class ResultService:
    """Everything that can be looked at of analyses without loading one whole.

    Each method that names an analysis raises `AnalysisNotFoundError` if the subject may not read it, and
    `ReportUnavailableError` while (or because) its source was not fetched; each that takes a cursor `CursorError`.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    # ------------------------------------------------------------------------------------------ findings

    def findings(
        self,
        subject: Subject,
        analysis_id: str,
        wanted: FindingSelection = _ANY_FINDING,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Slice[FindingInfo]:
        """Findings in the order of path and line."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            page = findings.page_of_findings(session, analysis_id, wanted, limit=limit, cursor=cursor)
            items = tuple(finding_info(item, self._settings.public_url) for item in page.items)
            return Slice(items, page.next_cursor)

    def finding(self, subject: Subject, analysis_id: str, fingerprint: str) -> FindingInfo:
        """One finding of an analysis. Raises `FindingNotFoundError`."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            found = findings.find_finding(session, analysis_id, fingerprint)
            if found is None:
                raise FindingNotFoundError(
                    f"analysis {analysis_id} has no finding {fingerprint[:60]!r}", fingerprint=fingerprint[:60]
                )
            return finding_info(found, self._settings.public_url)

    # ------------------------------------------------------------------------------------------ targets and checks

    def targets(
        self,
        subject: Subject,
        analysis_id: str,
        wanted: TargetSelection = _ANY_TARGET,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Slice[TargetEntry]:
        """Targets with their checks, in the order of path and line."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            page = checks.page_of_targets(session, analysis_id, wanted, limit=limit, cursor=cursor)
            return Slice(tuple(_entry(item) for item in page.items), page.next_cursor)

    def target(self, subject: Subject, analysis_id: str, position: int) -> TargetEntry:
        """The target at this position. Raises `TargetNotFoundError`."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            found = checks.find_target(session, analysis_id, position)
            if found is None:
                raise TargetNotFoundError(f"analysis {analysis_id} has no target {position}", position=position)
            return _entry(found)

    def target_named(self, subject: Subject, analysis_id: str, name: str) -> TargetEntry:
        """The target with this name. Raises `TargetNotFoundError`."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            found = checks.find_target_named(session, analysis_id, name)
            if found is None:
                raise TargetNotFoundError(f"analysis {analysis_id} has no target {name[:100]!r}", name=name[:100])
            return _entry(found)

    def grid(
        self,
        subject: Subject,
        analysis_id: str,
        wanted: TargetSelection = _ANY_TARGET,
        *,
        limit: int = 500,
        cursor: str | None = None,
    ) -> Slice[GridRow]:
        """The verdicts of all checks by target, without what they say."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            return checks.page_of_grid(session, analysis_id, wanted, limit=limit, cursor=cursor)

    def checks(
        self,
        subject: Subject,
        analysis_id: str,
        wanted: CheckSelection = _ANY_CHECK,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Slice[TargetCheck]:
        """Check results in the order of their targets."""
        with self._database.reading() as session:
            _require(session, subject, analysis_id)
            return checks.page_of_checks(session, analysis_id, wanted, limit=limit, cursor=cursor)

    def compare(self, subject: Subject, base_id: str, head_id: str, asked: Asked = _ALL) -> Comparison:
        """What changed from one analysis to another. Both have to be readable."""
        with self._database.reading() as session:
            for analysis_id in (base_id, head_id):
                _require(session, subject, analysis_id)
            base, head = (session.get_one(AnalysisRow, analysis_id) for analysis_id in (base_id, head_id))
            return compared(session, base, head, asked, self._settings.public_url)

    # ------------------------------------------------------------------------------------------ analyses in one line

    def summary(self, subject: Subject, analysis_id: str) -> AnalysisSummary:
        """What came of an analysis. Raises `AnalysisNotFoundError`."""
        with self._database.reading() as session:
            return _found(session, subject, analysis_id)

    def summaries(
        self,
        subject: Subject,
        *,
        project: str | None = None,
        purposes: Collection[str] = (),
        statuses: Collection[str] = (),
        limit: int = 25,
        cursor: str | None = None,
    ) -> Slice[AnalysisSummary]:
        """Analyses, the newest first, of all projects or of the one with this id or name.

        Raises `ProjectNotFoundError`.
        """
        with self._database.reading() as session:
            return overviews.page_of_summaries(
                session,
                subject,
                limit=limit,
                cursor=cursor,
                project_id=None if project is None else project_called(session, subject, project).id,
                purposes=purposes,
                statuses=statuses,
            )

    def trend(self, subject: Subject, project: str, *, last: int = 50) -> tuple[AnalysisSummary, ...]:
        """The last settled analyses of the main line, the oldest first. Raises `ProjectNotFoundError`."""
        with self._database.reading() as session:
            project_id = project_called(session, subject, project).id
            found = overviews.last_settled(session, subject, [project_id], Purpose.MAIN, last=last)
            return tuple(found.get(project_id, ()))

    def baseline(self, subject: Subject, project: str, commit: str, options: AnalysisOptions) -> str | None:
        """The id of an analysis of this commit that need not be made again; None: there is none.

        None too for a project that is not there yet.
        """
        with self._database.reading() as session:
            try:
                project_id = project_called(session, subject, project).id
            except ProjectNotFoundError:
                return None
            return find_baseline(session, project_id, options, commit=commit)

    def trends(
        self, subject: Subject, project_ids: Collection[str], *, last: int
    ) -> dict[str, tuple[AnalysisSummary, ...]]:
        """By project, of at most a hundred, what `trend` tells of it; one without such an analysis is missing."""
        with self._database.reading() as session:
            found = overviews.last_settled(session, subject, project_ids, Purpose.MAIN, last=last)
            return {project_id: tuple(summaries) for project_id, summaries in found.items()}

    def last_asked(self, subject: Subject, project_ids: Collection[str]) -> dict[str, datetime]:
        """By project, of at most a hundred, when its newest analysis was asked for; one without any is missing."""
        with self._database.reading() as session:
            return overviews.last_asked(session, subject, project_ids)


def _entry(found: PlacedTarget) -> TargetEntry:
    return TargetEntry(found.position, target_info(found.result))


def _found(session: Session, subject: Subject, analysis_id: str) -> AnalysisSummary:
    found = overviews.find_summary(session, subject, analysis_id)
    if found is None:
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id!r}", id=analysis_id)
    return found


def _require(session: Session, subject: Subject, analysis_id: str) -> None:
    found = overviews.find_source(session, subject, analysis_id)
    if found is None:
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id!r}", id=analysis_id)
    if found.snapshot_digest is None:
        reason = found.reason or "its source is not fetched yet"
        raise ReportUnavailableError(f"analysis {analysis_id} has no report: {reason}", status=found.status)
