"""Queries behind `services.analyses.particulars`, and what runs at this moment. Never commits.

Every one is bounded or grouped: what is read does not grow with the analysis, except where a number is counted.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.analyses.particulars import NotRunGroup, UnsaidChecks
from services.checks.models import CheckResultRow, TargetRow
from services.checks.repository import target_result
from services.findings.models import SuppressionRow
from services.jobs.models import OWNED_STATES, JobRow
from services.reports.build import target_info
from services.reports.document import ExampleInfo, SuppressionInfo
from services.reports.missing import REASON

MOST: Final = 100
_MOST_SENTENCES: Final = 500
_MOST_REASONS: Final = 50


def verdicts_by_check(session: Session, analysis_id: str) -> dict[str, dict[str, int]]:
    """How many results of each check have which verdict."""
    rows = session.execute(
        select(CheckResultRow.check_name, CheckResultRow.verdict, func.count())
        .where(CheckResultRow.analysis_id == analysis_id)
        .group_by(CheckResultRow.check_name, CheckResultRow.verdict)
    )
    found: dict[str, dict[str, int]] = {}
    for check, verdict, number in rows:
        found.setdefault(check, {})[verdict] = number
    return found


def not_run_groups(session: Session, analysis_id: str) -> tuple[NotRunGroup, ...]:
    """The reasons for not running targets, the most frequent first, each with the first target in order."""
    groups = session.execute(
        select(TargetRow.not_run_reason, func.count(), func.min(TargetRow.position))
        .where(TargetRow.analysis_id == analysis_id, TargetRow.not_run_reason.is_not(None))
        .group_by(TargetRow.not_run_reason)
        .order_by(func.count().desc(), TargetRow.not_run_reason)
        .limit(_MOST_REASONS)
    ).all()
    rows = session.scalars(
        select(TargetRow).where(
            TargetRow.analysis_id == analysis_id, TargetRow.position.in_([position for _, _, position in groups])
        )
    )
    first = {row.position: target_info(target_result(row, ())) for row in rows}
    return tuple(NotRunGroup(str(reason), number, first[position]) for reason, number, position in groups)


def missing_sentences(session: Session, analysis_id: str) -> dict[str, int]:
    """What was said of targets that lack a package, and of how many."""
    rows = session.execute(
        select(TargetRow.not_run_detail, func.count())
        .where(TargetRow.analysis_id == analysis_id, TargetRow.not_run_reason == REASON)
        .group_by(TargetRow.not_run_detail)
        .order_by(func.count().desc())
        .limit(_MOST_SENTENCES)
    )
    return {detail or "": number for detail, number in rows}


def unsaid_checks(session: Session, analysis_id: str) -> tuple[UnsaidChecks, ...]:
    """The checks that said nothing, by check, verdict and the reason they gave: errors first, then by how often."""
    rows = session.execute(
        select(CheckResultRow.check_name, CheckResultRow.verdict, CheckResultRow.summary, func.count())
        .where(CheckResultRow.analysis_id == analysis_id, CheckResultRow.verdict.in_(("skipped", "error")))
        .group_by(CheckResultRow.check_name, CheckResultRow.verdict, CheckResultRow.summary)
        .order_by(CheckResultRow.verdict, func.count().desc(), CheckResultRow.check_name, CheckResultRow.summary)
        .limit(MOST)
    )
    return tuple(UnsaidChecks(*row) for row in rows)


def first_suppressions(session: Session, analysis_id: str) -> tuple[SuppressionInfo, ...]:
    """The first findings that comments in the source silence."""
    rows = session.scalars(
        select(SuppressionRow)
        .where(SuppressionRow.analysis_id == analysis_id)
        .order_by(SuppressionRow.position)
        .limit(MOST)
    )
    return tuple(
        SuppressionInfo(
            rule=row.rule, path=row.path, start_line=row.start_line, fingerprint=row.fingerprint, reason=row.reason
        )
        for row in rows
    )


def first_examples(row: AnalysisRow) -> tuple[ExampleInfo, ...]:
    """The first of the repository's own examples."""
    return tuple(ExampleInfo.model_validate(example) for example in row.examples[:MOST])


def running_now(session: Session, analysis_id: str, *, limit: int = 5) -> tuple[tuple[str, str], ...]:
    """What workers hold of an analysis: the kind of the job and the name of its target (empty without one)."""
    rows = session.execute(
        select(JobRow.kind, TargetRow.name)
        .outerjoin(TargetRow, TargetRow.id == JobRow.target_id)
        .where(JobRow.analysis_id == analysis_id, JobRow.state.in_(OWNED_STATES))
        .order_by(JobRow.started_at, TargetRow.turn)
        .limit(limit)
    )
    return tuple((str(kind), name or "") for kind, name in rows)
