"""Queries over the findings of one analysis page by page, and their numbers: what lists and pages show. Never commits.

A page reads as many rows as it shows: nothing here loads a whole analysis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from analyzer.findings import Confidence, Finding, Region, Severity
from analyzer.registry import rule as find_rule
from services.database.base import storable
from services.findings.model import SettledFinding, Settlement
from services.findings.models import FindingRow, SuppressionRow
from services.findings.repository import settled_finding
from services.reports.listing import Slice, position_of

PAGE_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class FindingSelection:
    """Which findings of an analysis are wanted; what is None does not narrow.

    `rule` is an id, a name, or the beginning of ids; `path` a file, or a directory that ends in `/`; `text` is looked
    for in message, path, symbol and fingerprint, whatever the case.
    """

    rule: str | None = None
    severity: str | None = None
    verdict: str | None = None
    path: str | None = None
    is_new: bool | None = None
    triage: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """How many findings of an analysis share these."""

    severity: str
    verdict: str
    is_new: bool
    triage: str
    count: int


def page_of_findings(
    session: Session, analysis_id: str, wanted: FindingSelection, *, limit: int, cursor: str | None = None
) -> Slice[SettledFinding]:
    """Findings in the order of path and line. The cursor is a position in that order. Raises `CursorError`."""
    limit = max(1, min(limit, PAGE_LIMIT))
    rows = session.scalars(
        select(FindingRow)
        .where(FindingRow.analysis_id == analysis_id, FindingRow.position >= position_of(cursor), *conditions(wanted))
        .order_by(FindingRow.position)
        .limit(limit + 1)
    ).all()
    following = str(rows[limit - 1].position + 1) if len(rows) > limit else None
    return Slice(tuple(settled_finding(row) for row in rows[:limit]), following)


def find_finding(session: Session, analysis_id: str, fingerprint: str) -> SettledFinding | None:
    """The finding of an analysis with this fingerprint, the first of them in the order of path and line."""
    row = session.scalars(
        select(FindingRow)
        .where(FindingRow.fingerprint == fingerprint, FindingRow.analysis_id == analysis_id)
        .order_by(FindingRow.position)
        .limit(1)
    ).first()
    return None if row is None else settled_finding(row)


def findings_for_gate(session: Session, analysis_id: str) -> tuple[SettledFinding, ...]:
    """The findings of an analysis with what a gate looks at, and without fixes, hypotheses and further places.

    A finding that was confirmed is stored as an error; here it has the severity that its rule has by itself.
    """
    row = FindingRow
    rows = session.execute(
        select(
            row.fingerprint, row.rule, row.name, row.severity, row.confidence, row.path, row.start_line, row.cell,
            row.verdict, row.evidence, row.is_new, row.triage,
        )
        .where(row.analysis_id == analysis_id)
        .order_by(row.position)
    )  # fmt: skip
    return tuple(
        SettledFinding(
            Finding(
                fingerprint=values.fingerprint,
                rule=values.rule,
                name=values.name,
                severity=_own_severity(values.rule, values.verdict) or Severity(values.severity),
                confidence=Confidence(values.confidence),
                region=Region(values.path, values.start_line, 1, values.start_line, 1, values.cell),
                symbol="",
                message="",
            ),
            Settlement(values.verdict, "", values.evidence),
            is_new=values.is_new,
            triage=values.triage,
        )
        for values in rows
    )


def groups_of_findings(session: Session, analysis_id: str) -> tuple[FindingGroup, ...]:
    """How many findings there are, by what they are counted by."""
    columns = (FindingRow.severity, FindingRow.verdict, FindingRow.is_new, FindingRow.triage)
    rows = session.execute(
        select(*columns, func.count()).where(FindingRow.analysis_id == analysis_id).group_by(*columns)
    )
    return tuple(FindingGroup(*row) for row in rows)


def number_of_suppressed(session: Session, analysis_id: str) -> int:
    """How many findings comments in the source silence."""
    counted = select(func.count()).where(SuppressionRow.analysis_id == analysis_id)
    return session.scalar(counted) or 0


def _own_severity(rule: str, verdict: str) -> Severity | None:
    found = find_rule(rule) if verdict == "confirmed" else None
    return None if found is None else found.severity


def conditions(wanted: FindingSelection) -> Iterator[ColumnElement[bool]]:
    """What a row has to fulfil to be wanted."""
    row = FindingRow
    if wanted.rule is not None:
        yield or_(row.name == wanted.rule, row.rule.startswith(storable(wanted.rule), autoescape=True))
    for column, value in ((row.severity, wanted.severity), (row.verdict, wanted.verdict), (row.triage, wanted.triage)):
        if value is not None:
            yield column == value
    if wanted.path is not None:
        lies_in = row.path.startswith(storable(wanted.path), autoescape=True)
        yield lies_in if wanted.path.endswith("/") else row.path == wanted.path
    if wanted.is_new is not None:
        yield row.is_new.is_(wanted.is_new)
    if wanted.text:
        texts = (row.message, row.path, row.symbol, row.fingerprint)
        yield or_(*(func.lower(text).contains(storable(wanted.text.lower()), autoescape=True) for text in texts))
