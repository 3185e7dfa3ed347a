"""What happens when the last job of an analysis has ended: verdicts, triage, gate, totals, status. Exactly once.

Runs in the transaction of whoever ended that job, while the analysis is locked; the reconciler does it for a worker
that died in between. Decides nothing about single findings (`services.findings.settle`), gates (`services.gates`), or
what a project keeps of it (`services.triage.settling`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from services.analyses.comparing import comparand_of
from services.analyses.models import OPEN_STATUSES, SETTLED_STATUSES, AnalysisRow, AnalysisStatus, Purpose
from services.analyses.totals import count_totals
from services.checks.repository import load_targets, record_classes
from services.database.base import utc_now
from services.findings.failures import is_failure, with_failures
from services.findings.repository import fingerprints, load_findings, update_settlements
from services.findings.settle import settle
from services.forges.queueing import queue_publishing
from services.gates import GatePolicy, evaluate
from services.gates.classes import with_classes
from services.jobs import repository as jobs
from services.jobs.models import JobKind, JobRow, JobState
from services.projects.hooks import queue_hooks
from services.triage.policy import effective_policy
from services.triage.repository import settings_of
from services.triage.settling import ProjectLedger
from services.version import version

# Without these an analysis has nothing to say; the others cost it a part of what it says.
_NEEDED = (JobKind.INGEST, JobKind.STATIC)

POLICY: TypeAdapter[GatePolicy] = TypeAdapter(GatePolicy)


def policy_of(session: Session, row: AnalysisRow) -> GatePolicy:
    """The policy in force: the project's, over what the repository says, which is nothing before it was read."""
    policy = judging_policy(session, row) or _stored_policy(row) or GatePolicy()
    return effective_policy(policy, settings_of(session, row.project_id))


def judging_policy(session: Session, row: AnalysisRow) -> GatePolicy | None:
    """What the repository says on the base of a proposal, whose own file is a part of what is judged.

    None for anything else, and where the base was not read (yet): then its own file has to do.
    """
    if row.purpose != Purpose.PROPOSAL or row.base_id is None:
        return None
    base = session.get(AnalysisRow, row.base_id)
    return None if base is None else _stored_policy(base)


def _stored_policy(row: AnalysisRow) -> GatePolicy | None:
    stored = (row.configuration or {}).get("policy")
    return None if stored is None else POLICY.validate_python(stored)


def settle_if_done(session: Session, row: AnalysisRow) -> bool:
    """Settle the analysis if none of its jobs is open. The caller holds its lock. True if this call settled it.

    An analysis waits for its base to end: until then nobody can say which findings are new, and which checks failed
    before. The reconciler, which looks at every analysis without open jobs, settles it then.
    """
    if row.status not in OPEN_STATUSES or jobs.has_open_jobs(session, row.id) or _base_is_open(session, row):
        return False
    status, reason = _outcome(jobs.jobs_of(session, row.id))
    end_analysis(session, row, status, reason)
    return True


def end_analysis(session: Session, row: AnalysisRow, status: AnalysisStatus, reason: str | None) -> None:
    """Give the analysis its final status, its findings their verdicts and its gate the last word."""
    assert row.status in OPEN_STATUSES
    torch = row.tool.get("torch")
    targets = load_targets(session, row.id)
    comparand = comparand_of(session, row)
    if comparand is not None:
        targets = with_classes(targets, comparand, torch=None if torch is None else str(torch))
        record_classes(session, row.id, targets)
    known = fingerprints(session, row.base_id) if row.base_id else frozenset()
    read = (item.finding for item in load_findings(session, row.id) if not is_failure(item.finding))
    settled = with_failures(settle(read, targets, known=known), targets, known=known)
    ledger = None if row.project_id is None else ProjectLedger(session, row)
    if ledger is not None:
        settled = ledger.triaged(settled, ended_well=status in SETTLED_STATUSES)
    update_settlements(session, row.id, settled)
    gate = evaluate(
        settled,
        targets,
        policy_of(session, row),
        status=status.value,
        status_reason=reason,
        base_is_missing=base_is_missing(session, row),
    )
    row.status = status
    row.reason = reason
    row.gate = gate.model_dump(mode="json")
    row.tool = {**row.tool, "version": version()}
    row.totals = count_totals(session, row.id).stored()
    row.finished_at = utc_now()
    session.flush()
    queue_publishing(session, row)
    queue_hooks(session, row)
    if ledger is not None and status in SETTLED_STATUSES:
        ledger.record(settled, targets)


def base_is_missing(session: Session, row: AnalysisRow) -> bool:
    """Whether there is something to compare with whose own analysis came to nothing: nobody knows what is new then."""
    base = None if row.base_id is None else session.get(AnalysisRow, row.base_id)
    return base is not None and base.status not in SETTLED_STATUSES


def _base_is_open(session: Session, row: AnalysisRow) -> bool:
    base = None if row.base_id is None else session.get(AnalysisRow, row.base_id, populate_existing=True)
    return base is not None and base.status in OPEN_STATUSES


def _outcome(rows: Sequence[JobRow]) -> tuple[AnalysisStatus, str | None]:
    for row in rows:
        if row.kind in _NEEDED and row.state != JobState.SUCCEEDED:
            return AnalysisStatus.FAILED, row.reason or f"the {row.kind} job ended as {row.state}"
    probes = [row for row in rows if row.kind == JobKind.PROBE]
    lost = [row for row in probes if row.state == JobState.INFRA_FAILED]
    if lost:
        return AnalysisStatus.PARTIAL, f"{len(lost)} of {len(probes)} runs could not be made: {lost[0].reason}"
    return AnalysisStatus.FINISHED, None
