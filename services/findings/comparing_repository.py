"""Queries that compare the findings of two analyses by fingerprint, page by page. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from services.findings.model import SettledFinding
from services.findings.models import FindingRow
from services.findings.repository import settled_finding
from services.reports.listing import Slice, position_of

PAGE_LIMIT: Final = 500
Difference = Literal["new", "fixed", "unchanged", "regressed"]


@dataclass(frozen=True, slots=True)
class ChangedFinding:
    """A finding of both analyses whose verdict is no longer the same, as the later one has it."""

    finding: SettledFinding
    before: str


def page_of_difference(
    session: Session, base_id: str, head_id: str, kind: Difference, *, limit: int, cursor: str | None = None
) -> Slice[SettledFinding]:
    """Findings that came, went, or stayed, in the order of path and line. Raises `CursorError`."""
    rows = session.scalars(
        select(FindingRow)
        .where(*_conditions(base_id, head_id, kind), FindingRow.position >= position_of(cursor))
        .order_by(FindingRow.position)
        .limit(limit + 1)
    ).all()
    return _sliced(rows, limit)


def number_of_difference(session: Session, base_id: str, head_id: str, kind: Difference) -> int:
    """How many of them there are."""
    counted = select(func.count()).select_from(FindingRow).where(*_conditions(base_id, head_id, kind))
    return session.scalar(counted) or 0


def page_of_changed(
    session: Session, base_id: str, head_id: str, *, limit: int, cursor: str | None = None
) -> Slice[ChangedFinding]:
    """Findings of both whose verdict differs. Raises `CursorError`."""
    base = aliased(FindingRow)
    rows = session.execute(
        select(FindingRow, base.verdict)
        .join(base, base.fingerprint == FindingRow.fingerprint)
        .where(
            FindingRow.analysis_id == head_id,
            base.analysis_id == base_id,
            base.verdict != FindingRow.verdict,
            FindingRow.position >= position_of(cursor),
        )
        .order_by(FindingRow.position)
        .limit(limit + 1)
    ).all()
    following = str(rows[limit - 1][0].position + 1) if len(rows) > limit else None
    return Slice(tuple(ChangedFinding(settled_finding(row), before) for row, before in rows[:limit]), following)


def _conditions(base_id: str, head_id: str, kind: Difference) -> tuple[ColumnElement[bool], ...]:
    here, there = (base_id, head_id) if kind == "fixed" else (head_id, base_id)
    other = aliased(FindingRow)
    on_both = select(other.id).where(other.analysis_id == there, other.fingerprint == FindingRow.fingerprint).exists()
    conditions = [FindingRow.analysis_id == here, on_both if kind == "unchanged" else ~on_both]
    if kind == "regressed":
        conditions.append(FindingRow.triage == "regressed")
    return tuple(conditions)


def _sliced(rows: Sequence[FindingRow], limit: int) -> Slice[SettledFinding]:
    following = str(rows[limit - 1].position + 1) if len(rows) > limit else None
    return Slice(tuple(settled_finding(row) for row in rows[:limit]), following)
