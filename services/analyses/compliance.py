"""The compliance record of a stored analysis: gathers what it tells, and leaves the telling to `services.reports`."""

from __future__ import annotations

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.models import AnalysisRow
from services.analyses.repository import find_visible
from services.analyses.service import AnalysisService
from services.analyses.settlement import POLICY, policy_of
from services.database import Database
from services.projects.repository import project_name
from services.reports.compliance import Circumstances, ComplianceRecord, RecordedDecision, compliance_record
from services.reports.document import Report
from services.reuse.bounds import bounds_of
from services.reuse.keys import SEED
from services.settings import Settings
from services.triage.decisions_repository import rows_named
from services.triage.model import DECIDED

_TOLERANCES: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])
_AT_ONCE = 1_000


class ComplianceService:
    """Records of analyses."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._analyses = AnalysisService(database, settings)

    def record(self, subject: Subject, analysis_id: str) -> ComplianceRecord:
        """The record of an analysis as it stands, with what was decided about its findings.

        Raises `AnalysisNotFoundError`, or `ReportUnavailableError` while (or because) its source was not fetched.
        """
        report = self._analyses.report(subject, analysis_id)
        with self._database.reading() as session:
            row = find_visible(session, subject, analysis_id)
            if row is None:
                raise AnalysisNotFoundError(f"there is no analysis {analysis_id!r}", id=analysis_id)
            return compliance_record(report, self._circumstances(session, row, report))

    def _circumstances(self, session: Session, row: AnalysisRow, report: Report) -> Circumstances:
        return Circumstances(
            project=None if row.project_id is None else project_name(session, row.project_id),
            purpose=row.purpose,
            branch=row.branch,
            submitted_by=row.submitted_by_name,
            base=row.base_id,
            options=row.options,
            policy=POLICY.dump_python(policy_of(session, row), mode="json"),
            tolerances=_TOLERANCES.validate_python((row.configuration or {}).get("tolerances", {})),
            bounds=bounds_of(self._settings),
            seed=SEED,
            decisions={} if row.project_id is None else _decisions(session, row.project_id, report),
        )


def _decisions(session: Session, project_id: str, report: Report) -> dict[str, RecordedDecision]:
    decided = [finding.fingerprint for finding in report.findings if finding.triage in DECIDED]
    return {
        row.fingerprint: RecordedDecision(
            state=row.state,
            reason=row.reason,
            by=row.decided_by_name,
            at=row.decided_at,
            until_date=row.until_date,
            until_occurrences=row.until_occurrences,
            until_torch=row.until_torch,
        )
        for start in range(0, len(decided), _AT_ONCE)
        for row in rows_named(session, project_id, decided[start : start + _AT_ONCE])
        if row.state in DECIDED
    }
