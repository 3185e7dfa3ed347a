"""Deciding about findings: accepting them, calling them false, opening them again, commenting, assigning.

Each use case is one transaction that changes the finding, writes its history and the audit log, and tells the newest
analyses of the project. Who may read a project but not decide there gets `PermissionDeniedError`; whose project it is
not, `ProjectNotFoundError`. This module must not know HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from services.accounts.access import SYSTEM, Permission, Subject
from services.accounts.audit import note
from services.database import Database, new_id
from services.database.base import utc_now
from services.projects.models import ProjectRow
from services.triage import decisions_repository, repository
from services.triage import ledger_repository as ledger
from services.triage.decisions import (
    MOST_AT_ONCE,
    Change,
    Decision,
    checked,
    checked_text,
    outcome,
)
from services.triage.errors import FindingNotFoundError, InvalidDecisionError
from services.triage.expiry import Ending
from services.triage.gates import spread
from services.triage.model import FOR_GOOD, FindingFilter, ProjectFinding, Until
from services.triage.models import ProjectFindingRow
from services.triage.origins import Suggestion, suggestions
from services.triage.people import member_called
from services.triage.projects import project_called
from services.triage.settling import UNDECIDED_VALUES

_EVENTS = {"accept": "accepted", "false_positive": "false_positive", "reopen": "reopened"}


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What a decision about many did: the fingerprints that it changed, those it left as they were, those not there."""

    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    missing: tuple[str, ...]


class TriageService:
    """What can be decided about the findings of a project, which is named by its id or its name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ------------------------------------------------------------------------------------------ one finding

    def change(self, subject: Subject, project: str, fingerprint: str, change: Change) -> ProjectFinding:
        """Decide about one finding, give it to somebody, or both. Raises `FindingNotFoundError`,
        `InvalidDecisionError`; then nothing has changed.
        """
        with self._database.unit_of_work() as uow:
            place = _locked(uow.session, subject, project)
            row = _found(uow.session, place, fingerprint)
            _change(uow.session, subject, place, [row], change)
            return repository.finding_of(row)

    def decide(self, subject: Subject, project: str, fingerprint: str, decision: Decision) -> ProjectFinding:
        """Decide about one finding. Raises as `change` does."""
        return self.change(subject, project, fingerprint, Change(decision))

    def accept(
        self, subject: Subject, project: str, fingerprint: str, reason: str, until: Until = FOR_GOOD
    ) -> ProjectFinding:
        """Accept a finding as it is, for good or until something. Raises as `decide` does."""
        return self.decide(subject, project, fingerprint, Decision("accept", reason, until))

    def call_false(self, subject: Subject, project: str, fingerprint: str, reason: str) -> ProjectFinding:
        """Say that a finding is a false positive. Raises as `decide` does."""
        return self.decide(subject, project, fingerprint, Decision("false_positive", reason))

    def reopen(self, subject: Subject, project: str, fingerprint: str, reason: str = "") -> ProjectFinding:
        """Take a decision back. Raises as `decide` does."""
        return self.decide(subject, project, fingerprint, Decision("reopen", reason))

    def comment(self, subject: Subject, project: str, fingerprint: str, text: str) -> None:
        """Say something about a finding. Raises `FindingNotFoundError`, `InvalidDecisionError`."""
        text = checked_text(text, "a text")
        with self._database.unit_of_work() as uow:
            place = _locked(uow.session, subject, project)
            row = _found(uow.session, place, fingerprint)
            _tell(uow.session, subject, [(row, "commented", None, None)], text)
            _audit(uow.session, subject, place, "finding.comment", fingerprints=[fingerprint])

    def assign(self, subject: Subject, project: str, fingerprint: str, assignee: str | None) -> ProjectFinding:
        """Give a finding to a member of the project, by id or name; None: to nobody.

        Raises `FindingNotFoundError`, or `InvalidDecisionError` for somebody who can't see the project.
        """
        return self.change(subject, project, fingerprint, Change(reassign=True, assignee=assignee))

    def suggest_assignees(self, subject: Subject, project: str, fingerprint: str) -> tuple[Suggestion, ...]:
        """Whose file a finding is in, and who brought it in, as far as anybody says so: one at least.

        Raises `FindingNotFoundError`.
        """
        with self._database.reading() as session:
            place = project_called(session, subject, project)
            return suggestions(session, place, _found(session, place, fingerprint))

    # ------------------------------------------------------------------------------------------ many findings

    def change_many(
        self,
        subject: Subject,
        project: str,
        change: Change,
        *,
        fingerprints: Sequence[str] = (),
        wanted: FindingFilter | None = None,
    ) -> BulkOutcome:
        """The same for all of these findings, or for all that a filter takes: either, and 500 at most.

        Findings for which a decision makes no sense are left as they are. Raises `InvalidDecisionError`.
        """
        with self._database.unit_of_work() as uow:
            place = _locked(uow.session, subject, project)
            rows, missing = _chosen(uow.session, place, fingerprints, wanted)
            changed = _change(uow.session, subject, place, rows, change, leniently=True)
            return BulkOutcome(
                changed=tuple(row.fingerprint for row in rows if row.fingerprint in changed),
                unchanged=tuple(row.fingerprint for row in rows if row.fingerprint not in changed),
                missing=missing,
            )

    def decide_many(
        self,
        subject: Subject,
        project: str,
        decision: Decision,
        *,
        fingerprints: Sequence[str] = (),
        wanted: FindingFilter | None = None,
    ) -> BulkOutcome:
        """Decide about all of them. Raises as `change_many` does."""
        return self.change_many(subject, project, Change(decision), fingerprints=fingerprints, wanted=wanted)

    # ------------------------------------------------------------------------------------------ by the clock

    def end_acceptances(self) -> int:
        """End the acceptances that were until a date that has come; how many. For the reconciler.

        The finding is open again, or fixed where the main line was searched for it meanwhile, in vain.
        """
        with self._database.reading() as session:
            due = decisions_repository.projects_with_due_acceptances(session, utc_now())
        ended = 0
        for project_id in due:
            with self._database.unit_of_work() as uow:
                place = ledger.lock_project(uow.session, project_id)
                rows = decisions_repository.due_acceptances(uow.session, project_id, utc_now(), MOST_AT_ONCE)
                for row in rows:
                    _give(row, {"state": "fixed" if _is_gone(row) else "open", **UNDECIDED_VALUES})
                _tell(uow.session, SYSTEM, [(row, "expired", "accepted", row.state) for row in rows], Ending.DATE.value)
                _audit(uow.session, SYSTEM, place, "finding.expire", fingerprints=[row.fingerprint for row in rows])
                spread(uow.session, project_id, [row.fingerprint for row in rows], "open", SYSTEM)
                ended += len(rows)
        return ended


def _locked(session: Session, subject: Subject, project: str) -> ProjectRow:
    return ledger.lock_project(session, project_called(session, subject, project, Permission.TRIAGE).id)


def _found(session: Session, place: ProjectRow, fingerprint: str) -> ProjectFindingRow:
    row = repository.find_row(session, place.id, fingerprint)
    if row is None:
        raise FindingNotFoundError(f"the project has no finding {fingerprint[:60]!r}", fingerprint=fingerprint[:60])
    return row


def _chosen(
    session: Session, place: ProjectRow, fingerprints: Sequence[str], wanted: FindingFilter | None
) -> tuple[Sequence[ProjectFindingRow], tuple[str, ...]]:
    """The rows that are meant, and the fingerprints that the project does not have."""
    if bool(fingerprints) == (wanted is not None):
        raise InvalidDecisionError("name findings, or give a filter", field="fingerprints")
    if wanted is not None:
        rows = decisions_repository.rows_taken_by(session, place.id, wanted, MOST_AT_ONCE + 1)
        if len(rows) > MOST_AT_ONCE:
            raise InvalidDecisionError(
                f"the filter takes more than {MOST_AT_ONCE} findings, which is the most at once: narrow it",
                field="filter",
            )
        return rows, ()
    asked = tuple(dict.fromkeys(fingerprints))
    if len(asked) > MOST_AT_ONCE:
        raise InvalidDecisionError(f"{MOST_AT_ONCE} findings at most at once", field="fingerprints")
    rows = decisions_repository.rows_named(session, place.id, asked)
    found = {row.fingerprint for row in rows}
    return rows, tuple(fingerprint for fingerprint in asked if fingerprint not in found)


def _change(
    session: Session,
    subject: Subject,
    place: ProjectRow,
    rows: Sequence[ProjectFindingRow],
    change: Change,
    *,
    leniently: bool = False,
) -> frozenset[str]:
    """The fingerprints of what has changed."""
    changed: list[ProjectFindingRow] = []
    if change.reassign:
        changed += _assign(session, subject, place, rows, change.assignee)
    if change.decision is not None:
        changed += _decide(session, subject, place, rows, change.decision, leniently=leniently)
    return frozenset(row.fingerprint for row in changed)


def _decide(
    session: Session,
    subject: Subject,
    place: ProjectRow,
    rows: Iterable[ProjectFindingRow],
    decision: Decision,
    *,
    leniently: bool = False,
) -> list[ProjectFindingRow]:
    now = utc_now()
    decision = checked(decision, now=now, torch=ledger.newest_main_torch(session, place.id))
    told: list[tuple[ProjectFindingRow, str, str | None, str | None]] = []
    for row in rows:
        try:
            made = outcome(decision, row.state, is_gone=_is_gone(row))  # type: ignore[arg-type]
        except InvalidDecisionError:
            if leniently:
                continue
            raise
        if made.changed:
            told.append((row, _EVENTS[decision.verb], row.state, made.state))
            _give(row, {"state": made.state, **_kept(decision, subject, now)})
    session.flush()
    until = _until(decision.until)
    _tell(session, subject, told, decision.reason, until)
    for state in sorted({str(after) for *_, after in told}):
        changed = [row.fingerprint for row, *_, after in told if after == state]
        _audit(
            session, subject, place, f"finding.{decision.verb}", fingerprints=changed, reason=decision.reason, **until
        )
        spread(session, place.id, changed, "open" if state == "fixed" else state, subject)
    return [row for row, *_ in told]


def _kept(decision: Decision, subject: Subject, now: datetime) -> dict[str, object]:
    if decision.verb == "reopen":
        return UNDECIDED_VALUES
    return {
        "reason": decision.reason,
        "decided_by": subject.owner,
        "decided_by_name": subject.name,
        "decided_at": now,
        "until_date": decision.until.date,
        "until_occurrences": decision.until.occurrences,
        "until_torch": decision.until.torch,
        "occurrences": 0,
    }


def _assign(
    session: Session,
    subject: Subject,
    place: ProjectRow,
    rows: Iterable[ProjectFindingRow],
    assignee: str | None,
) -> list[ProjectFindingRow]:
    user = None if assignee is None else member_called(session, place.id, assignee)
    if assignee is not None and user is None:
        raise InvalidDecisionError(f"{assignee[:100]!r} is no member of the project", field="assignee")
    told: list[tuple[ProjectFindingRow, str, str | None, str | None]] = []
    for row in rows:
        if row.assignee_id == (None if user is None else user.id):
            continue
        told.append((row, "assigned", row.assignee_name, None if user is None else user.name))
        _give(row, {"assignee_id": user and user.id, "assignee_name": user and user.name})
    session.flush()
    _tell(session, subject, told, "")
    changed = [row for row, *_ in told]
    named = None if user is None else user.name
    fingerprints = [row.fingerprint for row in changed]
    _audit(session, subject, place, "finding.assign", fingerprints=fingerprints, assignee=named)
    return changed


def _is_gone(row: ProjectFindingRow) -> bool:
    """Whether the main line was searched for the finding, in vain."""
    return row.fixed_at is not None and not row.on_main


def _give(row: ProjectFindingRow, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(row, name, value)


def _tell(
    session: Session,
    subject: Subject,
    told: Iterable[tuple[ProjectFindingRow, str, str | None, str | None]],
    text: str,
    details: Mapping[str, object] | None = None,
) -> None:
    at = utc_now()
    ledger.add_events(
        session,
        [
            {
                "id": new_id(),
                "finding_id": row.id,
                "at": at,
                "actor_kind": subject.kind,
                "actor_id": subject.id,
                "actor_name": subject.name,
                "kind": kind,
                "before": before,
                "after": after,
                "text": text,
                "details": dict(details or {}),
            }
            for row, kind, before, after in told
        ],
    )


def _audit(
    session: Session,
    subject: Subject,
    place: ProjectRow,
    action: str,
    *,
    fingerprints: Sequence[str],
    **details: object,
) -> None:
    """One line for one decision, whatever the number of its findings."""
    if not fingerprints:
        return
    one = len(fingerprints) == 1
    note(
        session,
        subject,
        action,
        "finding" if one else "findings",
        fingerprints[0] if one else place.id,
        organisation_id=place.organisation_id,
        project_id=place.id,
        details=details if one else {**details, "fingerprints": list(fingerprints)},
    )


def _until(until: Until) -> dict[str, object]:
    told = {
        "date": None if until.date is None else until.date.isoformat(),
        "occurrences": until.occurrences,
        "torch": until.torch,
    }
    known = {key: value for key, value in told.items() if value is not None}
    return {"until": known} if known else {}
