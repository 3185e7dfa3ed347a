"""Judges the gates of ended analyses anew after a decision, and keeps what each said at its end.

A team that accepts a finding wants the check of its pull request to turn green; whoever looks into the past wants to
know what was said then. So the gate of an analysis holds what is so now, and beside it, once that has changed, the
record of its end. Only the newest analyses are looked at, and those that open pull requests show: who decides today
does not mean last year's.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.analyses.models import SETTLED_STATUSES
from services.analyses.settlement import base_is_missing, policy_of
from services.analyses.totals import count_totals
from services.checks.pages_repository import verdicts_of
from services.database.base import utc_now
from services.findings.pages_repository import findings_for_gate
from services.forges.queueing import queue_publishing
from services.gates import evaluate
from services.reports.document import Gate, GateRecord
from services.triage import gates_repository as repository


def spread(session: Session, project_id: str, fingerprints: Collection[str], state: str, subject: Subject) -> None:
    """Tell the newest analyses of a project, and the heads of its open pull requests, what was decided about these
    findings, and judge their gates anew.

    The caller holds the project.
    """
    heads = {row.id: row for row in repository.heads_that_have(session, project_id, fingerprints)}
    analyses = heads | {row.id: row for row in repository.newest_analyses(session, project_id)}
    touched = repository.tell_analyses(session, analyses, fingerprints, state)
    judged = 0
    for row in analyses.values():
        if row.id not in touched or row.status not in SETTLED_STATUSES or row.gate is None:
            continue
        if row.id not in heads:
            if judged == repository.MOST_JUDGED:
                break
            judged += 1
        before = Gate.model_validate(row.gate)
        now = evaluate(
            findings_for_gate(session, row.id),
            verdicts_of(session, row.id),
            policy_of(session, row),
            status=row.status,  # type: ignore[arg-type]
            status_reason=row.reason,
            base_is_missing=base_is_missing(session, row),
        )
        row.totals = count_totals(session, row.id).stored()
        queue_publishing(session, row)
        if (now.passed, now.conditions) == (before.passed, before.conditions):
            continue
        first = before.at_end or before
        record = GateRecord(
            passed=first.passed, conditions=first.conditions, revised_at=utc_now(), revised_by=subject.name
        )
        same = (now.passed, now.conditions) == (record.passed, record.conditions)
        row.gate = now.model_copy(update={"at_end": None if same else record}).model_dump(mode="json")
    session.flush()
