"""What an analysis ran on and left out, what runs of it now, where a finding stands among the others.

Beside `services.analyses.results`, which gives the parts themselves; as there, nothing is loaded whole and nothing is
changed. This module must not know HTTP.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject
from services.analyses import particulars_repository, repository
from services.analyses.errors import AnalysisNotFoundError, ReportUnavailableError
from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow
from services.analyses.particulars import Particulars, UnsaidChecks
from services.analyses.rows import gate_of, imports_of, info_of, source_of, tool_of
from services.database import Database
from services.findings import neighbours_repository
from services.findings.neighbours_repository import Neighbours
from services.findings.pages_repository import FindingSelection, number_of_suppressed
from services.reports.build import NOT_ELIGIBLE
from services.reports.document import SnapshotInfo
from services.reports.missing import missing_from
from services.settings import Settings
from services.snapshots.repository import find_snapshot

_ANY: Final = FindingSelection()


class AboutService:
    """Each method raises `AnalysisNotFoundError` if the subject may not read the analysis."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def particulars(self, subject: Subject, analysis_id: str) -> Particulars:
        """All of a report but its findings and targets.

        Raises `ReportUnavailableError` while (or because) its source was not fetched.
        """
        with self._database.reading() as session:
            row = _found(session, subject, analysis_id)
            snapshot = find_snapshot(session, row.snapshot_digest) if row.snapshot_digest else None
            if snapshot is None:
                reason = row.reason or "its source is not fetched yet"
                raise ReportUnavailableError(f"analysis {analysis_id} has no report: {reason}", status=row.status)
            groups = particulars_repository.not_run_groups(session, row.id)
            imports = imports_of(row)
            return Particulars(
                analysis=info_of(row),
                snapshot=SnapshotInfo(
                    digest=snapshot.digest, source=source_of(row), files=snapshot.files, lines=snapshot.lines
                ),
                tool=tool_of(row),
                gate=gate_of(row),
                static_only=AnalysisOptions.model_validate(row.options).static_only,
                budget_s=self._settings.analysis_budget.total_seconds() or None,
                verdicts=particulars_repository.verdicts_by_check(session, row.id),
                not_run=tuple(group for group in groups if group.reason not in NOT_ELIGIBLE),
                not_eligible=tuple(group for group in groups if group.reason in NOT_ELIGIBLE),
                missing=tuple(missing_from(particulars_repository.missing_sentences(session, row.id))),
                examples=particulars_repository.first_examples(row),
                examples_in_all=len(row.examples),
                examples_reason=row.examples_reason,
                imports=imports[: particulars_repository.MOST],
                imports_in_all=len(imports),
                suppressions=particulars_repository.first_suppressions(session, row.id),
                suppressions_in_all=number_of_suppressed(session, row.id),
            )

    def running(self, subject: Subject, analysis_id: str) -> tuple[tuple[str, str], ...]:
        """What workers hold of it now: the kind of each job with the name of its target, at most five."""
        with self._database.reading() as session:
            return particulars_repository.running_now(session, _found(session, subject, analysis_id).id)

    def unsaid_checks(self, subject: Subject, analysis_id: str) -> tuple[UnsaidChecks, ...]:
        """The checks that said nothing, grouped by the reason that they gave, at most a hundred groups."""
        with self._database.reading() as session:
            return particulars_repository.unsaid_checks(session, _found(session, subject, analysis_id).id)

    def may(self, subject: Subject, analysis_id: str, permission: Permission) -> bool:
        """Whether the subject may do this with an analysis that it can read: what a page offers goes by that."""
        with self._database.reading() as session:
            return repository.find_visible(session, subject, analysis_id, permission) is not None

    def neighbours(
        self, subject: Subject, analysis_id: str, fingerprint: str, wanted: FindingSelection = _ANY
    ) -> Neighbours | None:
        """Where a finding stands among those that are wanted; None if it is none of them."""
        with self._database.reading() as session:
            row = _found(session, subject, analysis_id)
            return neighbours_repository.neighbours(session, row.id, fingerprint, wanted)

    def count_findings(self, subject: Subject, analysis_id: str, wanted: FindingSelection = _ANY) -> int:
        """How many findings are wanted."""
        with self._database.reading() as session:
            return neighbours_repository.count_findings(session, _found(session, subject, analysis_id).id, wanted)

    def rules(self, subject: Subject, analysis_id: str) -> tuple[tuple[str, str, int], ...]:
        """The rules and checks that said something: id, name, how often."""
        with self._database.reading() as session:
            return neighbours_repository.rules_of(session, _found(session, subject, analysis_id).id)


def _found(session: Session, subject: Subject, analysis_id: str) -> AnalysisRow:
    row = repository.find_visible(session, subject, analysis_id)
    if row is None:
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id!r}", id=analysis_id)
    return row
