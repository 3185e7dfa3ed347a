"""Loads what there is to tell of a pull request: the report of its head, and what is gone since its base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.accounts.access import SYSTEM
from services.analyses.errors import ReportUnavailableError
from services.analyses.models import SETTLED_STATUSES, AnalysisRow
from services.analyses.service import AnalysisService
from services.analyses.settlement import policy_of
from services.database import Database
from services.forges import repository
from services.forges.publication import place_of
from services.forges.review import Links, Review
from services.projects.settings import read_project_settings
from services.reports.compare import compare
from services.reports.document import Report
from services.reports.sources import DirectorySources, NoSources
from services.settings import Settings
from services.snapshots import SnapshotStore
from services.snapshots.errors import SnapshotNotFoundError


@dataclass(frozen=True, slots=True)
class LoadedReview:
    """A review, and the directories of what was analysed; None where it is not kept any more."""

    review: Review
    head: Path | None
    base: Path | None


class Reviews:
    """Reads reports for the bot, which acts for Gradproof itself."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._analyses = AnalysisService(database, settings)
        self._store = SnapshotStore(settings.snapshot_dir)

    def load(self, pull_request_id: str) -> LoadedReview | None:
        """What there is to tell of the present head; None while there are no results."""
        with self._database.reading() as session:
            around = repository.surroundings(session, pull_request_id)
            row = None if around is None else around.pull_request
            analysis = None if row is None or row.analysis_id is None else session.get(AnalysisRow, row.analysis_id)
            if around is None or row is None or analysis is None or analysis.status not in SETTLED_STATUSES:
                return None
            place = place_of(around)
            policy, analysis_id, base_id = policy_of(session, analysis), analysis.id, analysis.base_id
            head_sha, base_sha = row.head_sha, row.merge_base_sha
            blocks = read_project_settings(around.project.settings).bot.blocks
        report, base = self._analyses.report(SYSTEM, analysis_id), self._report(base_id)
        head_directory = self._directory(report)
        review = Review(
            report=report,
            links=Links(
                forge=place.forge,
                repository=place.web_url,
                head_sha=head_sha,
                report=f"{self._settings.public_url.rstrip('/')}/analyses/{analysis_id}",
            ),
            policy=policy,
            base_sha=None if base is None else base_sha,
            sources=NoSources() if head_directory is None else DirectorySources(head_directory),
            fixed=() if base is None else compare(base, report).fixed,
            blocks=blocks,
            base_is_missing=base is None and base_sha is not None,
        )
        base_directory = None if base is None else self._directory(base)
        return LoadedReview(review, head_directory, base_directory)

    def _report(self, analysis_id: str | None) -> Report | None:
        if analysis_id is None:
            return None
        try:
            report = self._analyses.report(SYSTEM, analysis_id)
        except ReportUnavailableError:  # it was never fetched
            return None
        return report if report.analysis.status in SETTLED_STATUSES else None

    def _directory(self, report: Report) -> Path | None:
        try:
            return self._store.path(report.snapshot.digest)
        except SnapshotNotFoundError:
            return None
