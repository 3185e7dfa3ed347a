"""Where a finding stands among those of its analysis that are wanted: what comes before and after it. Never commits."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.findings.models import FindingRow
from services.findings.pages_repository import FindingSelection, conditions


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a finding stands in a list: its number and how many there are, the fingerprints before and after it."""

    number: int
    total: int
    before: str | None
    after: str | None


def neighbours(session: Session, analysis_id: str, fingerprint: str, wanted: FindingSelection) -> Neighbours | None:
    """None if the finding is not among those that are wanted."""
    chosen = [FindingRow.analysis_id == analysis_id, *conditions(wanted)]
    position = session.scalar(
        select(FindingRow.position)
        .where(*chosen, FindingRow.fingerprint == fingerprint)
        .order_by(FindingRow.position)
        .limit(1)
    )
    if position is None:
        return None
    before = session.scalar(
        select(FindingRow.fingerprint)
        .where(*chosen, FindingRow.position < position)
        .order_by(FindingRow.position.desc())
        .limit(1)
    )
    after = session.scalar(
        select(FindingRow.fingerprint)
        .where(*chosen, FindingRow.position > position)
        .order_by(FindingRow.position)
        .limit(1)
    )
    number = session.scalar(select(func.count()).where(*chosen, FindingRow.position <= position)) or 1
    total = session.scalar(select(func.count()).where(*chosen)) or 1
    return Neighbours(number, total, before, after)


def count_findings(session: Session, analysis_id: str, wanted: FindingSelection) -> int:
    """How many findings of an analysis are wanted."""
    return session.scalar(select(func.count()).where(FindingRow.analysis_id == analysis_id, *conditions(wanted))) or 0


def rules_of(session: Session, analysis_id: str, *, limit: int = 200) -> tuple[tuple[str, str, int], ...]:
    """The rules and checks that said something in an analysis: id, name, how often; in the order of ids."""
    rows = session.execute(
        select(FindingRow.rule, func.min(FindingRow.name), func.count())
        .where(FindingRow.analysis_id == analysis_id)
        .group_by(FindingRow.rule)
        .order_by(FindingRow.rule)
        .limit(limit)
    )
    return tuple((rule, name, number) for rule, name, number in rows)
