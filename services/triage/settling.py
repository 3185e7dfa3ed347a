"""Carries a settled analysis into the findings of its project, and what was decided about those into the analysis.

Called in the transaction that settles the analysis. Only the newest analysis of the main line decides what is on it:
what it looked for and does not find is fixed, and what was fixed and is there again has regressed. A proposal adds what
it brings and decides nothing; neither does a base, nor a main analysis that a newer one has overtaken. People's
decisions go by the fingerprint: they stay when a finding comes and goes, and when its rule is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import SYSTEM, Subject
from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow, Purpose
from services.checks.plan import CHECKS
from services.database import new_id
from services.database.base import utc_now
from services.findings.model import SettledFinding, TargetResult
from services.reports.document import TriageState
from services.triage import ledger_repository as ledger
from services.triage.expiry import ending_of
from services.triage.ledger_repository import Gone, Known
from services.triage.looked import Looked
from services.triage.model import DECIDED, SEVERITIES
from services.triage.origins import Assignment, author_of, owner_of
from services.triage.repository import settings_of

# What is left of a decision that has ended: its history tells the rest.
UNDECIDED_VALUES: Final[dict[str, object]] = {
    "reason": "",
    "decided_by": None,
    "decided_by_name": None,
    "decided_at": None,
    "until_date": None,
    "until_occurrences": None,
    "until_torch": None,
    "occurrences": 0,
}


@dataclass(frozen=True, slots=True)
class _Change:
    """A state that Gradproof itself gives to a finding."""

    finding_id: str
    fingerprint: str
    kind: str
    before: str
    after: TriageState
    text: str


class ProjectLedger:
    """The findings of a project while one of its analyses is settled. Holds the project until the transaction ends."""

    def __init__(self, session: Session, row: AnalysisRow) -> None:
        assert row.project_id is not None
        self._session = session
        self._row = row
        self._project = ledger.lock_project(session, row.project_id)
        self._now = utc_now()
        newest = self._project.baseline_id is None or row.id >= self._project.baseline_id
        self._decides = row.purpose == Purpose.MAIN and newest
        self._known: dict[str, Known] = {}
        self._changes: list[_Change] = []

    def triaged(self, settled: Sequence[SettledFinding], *, ended_well: bool) -> tuple[SettledFinding, ...]:
        """The findings with what the project says of each. `ended_well`: the analysis has settled and may decide."""
        fingerprints = {item.finding.fingerprint for item in settled}
        self._known = ledger.known_findings(self._session, self._project.id, fingerprints)
        self._decides = self._decides and ended_well
        if self._decides:
            self._changes = [change for known in self._known.values() if (change := self._change(known)) is not None]
        changed = {change.fingerprint: change.after for change in self._changes}
        states = {key: changed.get(key) or self._shown(known) for key, known in self._known.items()}
        return tuple(replace(item, triage=states.get(item.finding.fingerprint, "open")) for item in settled)

    def record(self, settled: Sequence[SettledFinding], targets: Sequence[TargetResult]) -> None:
        """Note in the project what the analysis brought. Its own findings are stored by now."""
        session, row, project_id = self._session, self._row, self._project.id
        self._add(list(self._new(settled)))
        options = AnalysisOptions.model_validate(row.options)
        if row.purpose != Purpose.BASE and (self._decides or row.purpose == Purpose.PROPOSAL):
            ledger.refresh(
                session, project_id, row.id, self._now, on_main=self._decides, verdicts=not options.static_only
            )
        if not self._decides:
            return
        ledger.count_occurrence(session, project_id, row.id)
        for state, values in (("regressed", {"fixed_at": None}), ("open", UNDECIDED_VALUES)):
            ids = [change.finding_id for change in self._changes if change.after == state]
            ledger.change_findings(session, ids, {"state": state, **values})
        self._changes += self._take_off(options, settled, targets)
        write_events(session, self._changes, self._now, row.id)
        self._project.baseline_id = row.id
        session.flush()

    # ------------------------------------------------------------------------------------------ parts

    def _change(self, known: Known) -> _Change | None:
        if known.state == "fixed":
            return _Change(known.id, known.fingerprint, "regressed", "fixed", "regressed", "it is there again")
        if known.state == "accepted":
            torch = self._row.tool.get("torch")
            ending = ending_of(
                known.until,
                now=self._now,
                occurrences=known.occurrences + 1,
                torch=None if torch is None else str(torch),
            )
            if ending is not None:
                return _Change(known.id, known.fingerprint, "expired", "accepted", "open", ending.value)
        return None

    def _shown(self, known: Known) -> TriageState:
        """What the analysis shows of a finding whose state it leaves alone."""
        if known.state == "fixed":
            return "regressed" if self._row.purpose == Purpose.PROPOSAL else "open"
        return known.state  # type: ignore[return-value]

    def _add(self, findings: Sequence[dict[str, object]]) -> None:
        """Note new findings, and give them to whom the project wants."""
        assign = self._assigner() if findings else _nobody
        told = []
        for finding in findings:
            assignment = assign(str(finding["path"]))
            finding |= {"assignee_id": None, "assignee_name": None}
            if assignment is not None:
                finding |= {"assignee_id": assignment.user_id, "assignee_name": assignment.name}
                told.append(_assigned(str(finding["id"]), assignment, self._now, self._row.id))
        ledger.add_findings(self._session, findings)
        ledger.add_events(self._session, told)

    def _assigner(self) -> Callable[[str], Assignment | None]:
        """Whom a new finding in a file is given to. What a change is only compared with was there before."""
        wanted = settings_of(self._session, self._project.id).assign
        if self._row.purpose == Purpose.BASE:
            return _nobody
        if wanted == "owner":
            return owner_of(self._session, self._project, self._row.snapshot_digest if self._decides else None)
        if wanted == "author" and not (self._decides and self._project.baseline_id is None):
            author = author_of(self._session, self._project.id, self._row.id)
            return lambda _path: author
        return _nobody

    def _new(self, settled: Iterable[SettledFinding]) -> Iterable[dict[str, object]]:
        noted = set(self._known)
        for item in settled:
            finding, fingerprint = item.finding, item.finding.fingerprint
            if fingerprint in noted:
                continue
            noted.add(fingerprint)
            yield {
                "id": new_id(),
                "project_id": self._project.id,
                "fingerprint": fingerprint,
                "rule": finding.rule,
                "name": finding.name,
                "severity": item.severity.value,
                "severity_rank": SEVERITIES.index(item.severity.value),
                "path": finding.region.path,
                "line": finding.region.start_line,
                "symbol": finding.symbol,
                "message": finding.message,
                "verdict": item.settlement.verdict,
                "on_main": self._decides,
                "main_since": self._now if self._decides else None,
                "first_analysis_id": self._row.id,
                "last_analysis_id": self._row.id,
                "first_seen_at": self._now,
                "last_seen_at": self._now,
            }

    def _take_off(
        self, options: AnalysisOptions, settled: Sequence[SettledFinding], targets: Sequence[TargetResult]
    ) -> list[_Change]:
        """Take off the main line what the analysis looked for and does not have."""
        session = self._session
        gone = ledger.gone_from_main(session, self._project.id, self._row.id)
        if not gone:
            return []
        reading = (self._row.configuration or {}).get("reading")
        looked = Looked(
            options,
            reading if isinstance(reading, dict) else None,
            settled,
            targets,
            {item.path for item in gone},
        )
        failed = ledger.targets_that_failed(session, (item for item in gone if item.rule in CHECKS))
        suppressed = ledger.suppressed_fingerprints(session, self._row.id)
        fixed: list[Gone] = []
        silenced: list[Gone] = []
        for item in gone:
            if item.fingerprint in suppressed:
                silenced.append(item)
            elif (
                looked.for_failure(item.rule, failed.get(item.fingerprint, ()))
                if item.rule in CHECKS
                else looked.for_rule(item.rule, item.path)
            ):
                fixed.append(item)
        decided = [item for item in fixed if item.state in DECIDED]
        undecided = [item for item in fixed if item.state not in DECIDED]
        ledger.change_findings(session, [item.id for item in silenced], {"on_main": False})
        ledger.change_findings(session, [item.id for item in decided], {"on_main": False, "fixed_at": self._now})
        ledger.change_findings(
            session, [item.id for item in undecided], {"on_main": False, "fixed_at": self._now, "state": "fixed"}
        )
        return [
            *(_left(item, "fixed", "fixed", "looked for, and not there any more") for item in undecided),
            *(_left(item, "gone", item.state, "looked for, and not there any more") for item in decided),
            *(_left(item, "suppressed", item.state, "a comment in the source silences it") for item in silenced),
        ]


def _nobody(_path: str) -> None:
    return None


def _assigned(finding_id: str, assignment: Assignment, at: datetime, analysis_id: str) -> dict[str, object]:
    return {
        "id": new_id(),
        "finding_id": finding_id,
        "at": at,
        "actor_kind": SYSTEM.kind,
        "actor_id": SYSTEM.id,
        "actor_name": SYSTEM.name,
        "kind": "assigned",
        "before": None,
        "after": assignment.name,
        "text": assignment.why,
        "details": {"analysis": analysis_id},
    }


def _left(item: Gone, kind: str, after: str, text: str) -> _Change:
    return _Change(item.id, item.fingerprint, kind, item.state, after, text)  # type: ignore[arg-type]


def write_events(
    session: Session,
    changes: Iterable[_Change],
    at: datetime,
    analysis_id: str | None,
    subject: Subject = SYSTEM,
) -> None:
    """Write down what Gradproof itself did to findings."""
    ledger.add_events(
        session,
        [
            {
                "id": new_id(),
                "finding_id": change.finding_id,
                "at": at,
                "actor_kind": subject.kind,
                "actor_id": subject.id,
                "actor_name": subject.name,
                "kind": change.kind,
                "before": change.before,
                "after": change.after,
                "text": change.text,
                "details": {} if analysis_id is None else {"analysis": analysis_id},
            }
            for change in changes
        ],
    )
