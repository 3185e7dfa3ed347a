"""Queries over findings and suppressions: rows in, plain values out.

This module must not decide verdicts (`services.findings.settle` does), and never commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from analyzer.findings import Confidence, Finding, Fix, Region, Related, Severity, Suppression
from services.findings.model import SettledFinding, Settlement
from services.findings.models import FindingRow, SuppressionRow

_FIX: TypeAdapter[Fix] = TypeAdapter(Fix)
_RELATED: TypeAdapter[tuple[Related, ...]] = TypeAdapter(tuple[Related, ...])
_FINDING: TypeAdapter[Finding] = TypeAdapter(Finding)


def store_findings(session: Session, analysis_id: str, settled: Iterable[SettledFinding]) -> None:
    """Store what reading found, in the order given; whatever the analysis had before is replaced."""
    session.execute(delete(FindingRow).where(FindingRow.analysis_id == analysis_id))
    session.add_all(
        FindingRow(analysis_id=analysis_id, position=position, **_columns(item))
        for position, item in enumerate(settled)
    )
    session.flush()


def store_suppressions(session: Session, analysis_id: str, suppressed: Iterable[Suppression]) -> None:
    """Store the findings that comments in the source silence; replaces those of before."""
    session.execute(delete(SuppressionRow).where(SuppressionRow.analysis_id == analysis_id))
    session.add_all(
        SuppressionRow(
            analysis_id=analysis_id,
            position=position,
            rule=item.finding.rule,
            path=item.finding.region.path,
            start_line=item.finding.region.start_line,
            fingerprint=item.finding.fingerprint,
            reason=item.reason,
            finding=_FINDING.dump_python(item.finding, mode="json"),
        )
        for position, item in enumerate(suppressed)
    )
    session.flush()


def update_settlements(session: Session, analysis_id: str, settled: Sequence[SettledFinding]) -> None:
    """Write verdicts into the stored findings: `settled` begins with all of them, in their stored order.

    What comes after them is new, and stored behind them.
    """
    rows = session.scalars(
        select(FindingRow).where(FindingRow.analysis_id == analysis_id).order_by(FindingRow.position)
    ).all()
    for row, item in zip(rows, settled[: len(rows)], strict=True):
        row.severity = item.severity.value
        row.verdict = item.settlement.verdict
        row.verdict_reason = item.settlement.reason
        row.evidence = dict(item.settlement.evidence)
        row.is_new = item.is_new
        row.triage = item.triage
    session.add_all(
        FindingRow(analysis_id=analysis_id, position=position, **_columns(item))
        for position, item in enumerate(settled[len(rows) :], start=len(rows))
    )
    session.flush()


def load_findings(session: Session, analysis_id: str) -> tuple[SettledFinding, ...]:
    """All findings of an analysis with their present settlement, in the order of path and line."""
    rows = session.scalars(
        select(FindingRow).where(FindingRow.analysis_id == analysis_id).order_by(FindingRow.position)
    )
    return tuple(settled_finding(row) for row in rows)


def load_suppressions(session: Session, analysis_id: str) -> tuple[Suppression, ...]:
    """All suppressed findings of an analysis."""
    rows = session.scalars(
        select(SuppressionRow).where(SuppressionRow.analysis_id == analysis_id).order_by(SuppressionRow.position)
    )
    return tuple(Suppression(finding=_FINDING.validate_python(row.finding), reason=row.reason) for row in rows)


def fingerprints(session: Session, analysis_id: str) -> frozenset[str]:
    """The fingerprints of all findings of an analysis."""
    return frozenset(session.scalars(select(FindingRow.fingerprint).where(FindingRow.analysis_id == analysis_id)))


def _columns(item: SettledFinding) -> dict[str, object]:
    finding, region = item.finding, item.finding.region
    return {
        "fingerprint": finding.fingerprint,
        "rule": finding.rule,
        "name": finding.name,
        "severity": item.severity.value,
        "confidence": finding.confidence.value,
        "path": region.path,
        "start_line": region.start_line,
        "start_column": region.start_column,
        "end_line": region.end_line,
        "end_column": region.end_column,
        "cell": region.cell,
        "symbol": finding.symbol,
        "message": finding.message,
        "settled_by": list(finding.settled_by),
        "hypothesis": dict(finding.hypothesis),
        "fix": _FIX.dump_python(finding.fix, mode="json"),
        "related": _RELATED.dump_python(finding.related, mode="json"),
        "verdict": item.settlement.verdict,
        "verdict_reason": item.settlement.reason,
        "evidence": dict(item.settlement.evidence),
        "is_new": item.is_new,
        "triage": item.triage,
    }


def settled_finding(row: FindingRow) -> SettledFinding:
    """A row as the value that settling, gates and reports work on."""
    finding = Finding(
        fingerprint=row.fingerprint,
        rule=row.rule,
        name=row.name,
        severity=Severity(row.severity),
        confidence=Confidence(row.confidence),
        region=Region(row.path, row.start_line, row.start_column, row.end_line, row.end_column, row.cell),
        symbol=row.symbol,
        message=row.message,
        settled_by=tuple(row.settled_by),
        hypothesis=row.hypothesis,
        fix=_FIX.validate_python(row.fix),
        related=_RELATED.validate_python(row.related),
    )
    settlement = Settlement(row.verdict, row.verdict_reason, row.evidence)  # type: ignore[arg-type]
    return SettledFinding(finding, settlement, is_new=row.is_new, triage=row.triage)  # type: ignore[arg-type]
