"""Results that an earlier analysis of the same project has, for runs that would bring the same again.

A run is one job: a target on a class of devices. Where its key is that of a run that has succeeded, the job is born
ended, or ends when a worker takes it up, and what the other one brought is copied. Never looks beyond the project: what
others submitted is not ours to show. This module never commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.checks.models import CheckResultRow, TargetRow
from services.checks.repository import check_info, record_check
from services.database.base import utc_now
from services.jobs.models import JobKind, JobRow, JobState
from services.reports.document import Harness
from services.reuse.keys import is_lasting, run_key

REUSED: Final = "nothing that its results rest on has changed since an earlier analysis"
# Ids and keys in one statement: databases limit its parameters, SQLite to 32,766.
_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunKeys:
    """What the runs of an analysis rest on, by the id of the target: the key of its source, its recorded calls."""

    contents: Mapping[str, tuple[str, Sequence[Mapping[str, object]]]]

    def key(self, target_id: str, device_class: str, checks: Sequence[str]) -> str | None:
        """The key of one run; None if nothing may be reused."""
        found = self.contents.get(target_id)
        return None if found is None else run_key(found[0], mined=found[1], device=device_class, checks=checks)


def run_keys(session: Session, row: AnalysisRow) -> RunKeys:
    """Those of all targets of the analysis."""
    rows = session.execute(
        select(TargetRow.id, TargetRow.content_key, TargetRow.mined).where(TargetRow.analysis_id == row.id)
    )
    return RunKeys({target_id: (key, mined) for target_id, key, mined in rows if key is not None})


def reuse_results(session: Session, row: AnalysisRow, jobs: Sequence[JobRow]) -> int:
    """End those of the jobs whose results are known, with these results; how many there were."""
    by_key = {job.reuse_key: job for job in jobs if job.reuse_key is not None}
    keys = list(by_key)
    count = 0
    for start in range(0, len(keys), _AT_ONCE):
        for key, donor in _donors(session, row, keys[start : start + _AT_ONCE]).items():
            count += _copied(session, donor, by_key[key])
    session.flush()
    return count


def reuse_examples(session: Session, row: AnalysisRow) -> bool:
    """Whether an earlier analysis has run the same examples well; then the calls that they made are taken over."""
    if row.examples_key is None:
        return False
    donor = session.scalars(
        select(AnalysisRow)
        .join(JobRow, JobRow.analysis_id == AnalysisRow.id)
        .where(
            AnalysisRow.examples_key == row.examples_key,
            AnalysisRow.id != row.id,
            AnalysisRow.project_id.is_not_distinct_from(row.project_id),
            AnalysisRow.examples_reason.is_(None),
            JobRow.kind == JobKind.EXAMPLES,
            JobRow.state == JobState.SUCCEEDED,
        )
        .order_by(AnalysisRow.created_at.desc())
        .limit(1)
    ).first()
    if donor is None:
        return False
    theirs = session.execute(select(TargetRow.name, TargetRow.mined).where(TargetRow.analysis_id == donor.id))
    mined = {item.name: item.mined for item in theirs}
    for target in session.scalars(select(TargetRow).where(TargetRow.analysis_id == row.id)):
        target.mined = list(mined.get(target.name, ()))
    row.examples = list(donor.examples)
    session.flush()
    return True


def _donors(session: Session, row: AnalysisRow, keys: Sequence[str]) -> dict[str, JobRow]:
    """The newest succeeded run for each key."""
    found = session.execute(
        select(JobRow.reuse_key, JobRow)
        .join(AnalysisRow, AnalysisRow.id == JobRow.analysis_id)
        .where(
            JobRow.reuse_key.in_(keys),
            JobRow.state == JobState.SUCCEEDED,
            JobRow.analysis_id != row.id,
            AnalysisRow.project_id.is_not_distinct_from(row.project_id),
        )
        .order_by(JobRow.finished_at)
    )
    return {key: job for key, job in found if key is not None}


def _copied(session: Session, donor: JobRow, job: JobRow) -> bool:
    """Give the job the results of the other one, unless they might come out differently another time."""
    theirs, ours = session.get(TargetRow, donor.target_id), session.get(TargetRow, job.target_id)
    assert theirs is not None
    assert ours is not None
    results = [
        check_info(result)
        for result in session.scalars(
            select(CheckResultRow).where(CheckResultRow.job_id == donor.id).order_by(CheckResultRow.id)
        )
    ]
    harness = None if theirs.harness is None else Harness.model_validate(theirs.harness)
    if not is_lasting(harness, theirs.not_run_reason, results, asked=job.checks):
        return False
    if theirs.harness is not None:
        ours.harness, ours.not_run_reason, ours.not_run_detail = theirs.harness, None, None
    elif ours.harness is None:
        ours.not_run_reason, ours.not_run_detail = theirs.not_run_reason, theirs.not_run_detail
    ours.reused = True
    for result in results:
        record_check(session, analysis_id=job.analysis_id, target_id=ours.id, job_id=job.id, check=result)
    job.state, job.reason, job.lease_until = JobState.SUCCEEDED, REUSED, None
    job.started_at = job.finished_at = utc_now()
    return True
