"""Queries over the analyses that a decision about findings concerns. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow, AnalysisStatus
from services.findings.models import FindingRow
from services.forges.models import PullRequestRow, RepositoryRow

# So many analyses of a project show a decision about one of their findings, and of so many the gate is judged anew:
# one with 20,000 findings takes half a second.
MOST_TOLD: Final = 50
MOST_JUDGED: Final = 10
# Beside those: open pull requests wait for the decision at their heads, however old these are. Few share a new finding.
MOST_HEADS: Final = 100
_AT_ONCE: Final = 500


def newest_analyses(session: Session, project_id: str) -> Sequence[AnalysisRow]:
    """The newest analyses of a project that have findings, or may yet have some."""
    hopeless = (AnalysisStatus.FAILED, AnalysisStatus.CANCELLED)
    return session.scalars(
        select(AnalysisRow)
        .where(AnalysisRow.project_id == project_id, AnalysisRow.status.not_in(hopeless))
        .order_by(AnalysisRow.id.desc())
        .limit(MOST_TOLD)
    ).all()


def heads_that_have(session: Session, project_id: str, fingerprints: Collection[str]) -> Sequence[AnalysisRow]:
    """The analyses of the present heads of open pull requests of the project that have any of these findings."""
    wanted = sorted(fingerprints)
    found: dict[str, AnalysisRow] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        has_any = select(FindingRow.id).where(
            FindingRow.analysis_id == AnalysisRow.id, FindingRow.fingerprint.in_(wanted[start : start + _AT_ONCE])
        )
        rows = session.scalars(
            select(AnalysisRow)
            .join(PullRequestRow, PullRequestRow.analysis_id == AnalysisRow.id)
            .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
            .where(RepositoryRow.project_id == project_id, PullRequestRow.state == "open", has_any.exists())
            .order_by(AnalysisRow.id.desc())
            .limit(MOST_HEADS)
        )
        found |= {row.id: row for row in rows}
    return tuple(found.values())


def tell_analyses(
    session: Session, analysis_ids: Collection[str], fingerprints: Collection[str], state: str
) -> frozenset[str]:
    """Write the state into the findings of these analyses; returns the analyses that have any of them."""
    wanted, touched = sorted(fingerprints), set()
    for start in range(0, len(wanted), _AT_ONCE):
        concerned = (
            FindingRow.fingerprint.in_(wanted[start : start + _AT_ONCE]),
            FindingRow.analysis_id.in_(analysis_ids),
        )
        touched |= set(session.scalars(select(FindingRow.analysis_id).where(*concerned).distinct()))
        session.execute(
            update(FindingRow).where(*concerned).values(triage=state).execution_options(synchronize_session=False)
        )
    return frozenset(touched)
