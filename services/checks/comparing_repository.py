"""Queries that compare the checks of two analyses, and gather what a failing one is judged by. Never commits.

Checks are matched by target, name and device. A result of one side only is a change as well: it did not run there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, Subquery, case, func, literal, select, union_all
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.checks.models import CheckResultRow, TargetRow
from services.gates.classes import BaseCheck, BaseTarget, CheckKey
from services.jobs.models import JobRow
from services.reports.document import Harness
from services.reports.listing import Slice, position_of

_BASE, _HEAD = 0, 1


@dataclass(frozen=True, slots=True)
class ChangedVerdict:
    """A check whose verdict differs; None: it did not run on that side."""

    target: str
    check: str
    device: str
    before: str | None
    after: str | None


def page_of_changes(
    session: Session, base_id: str, head_id: str, *, limit: int, cursor: str | None = None
) -> Slice[ChangedVerdict]:
    """Checks whose verdict changed, in the order of the later analysis, then those that only the earlier one has.

    Raises `CursorError`.
    """
    start = position_of(cursor)
    changed = _changes(base_id, head_id)
    at = changed.c
    rows = session.execute(
        select(at.name, at.check_name, at.device, at.before, at.after)
        .order_by(at.side.desc(), at.position, at.id)
        .offset(start)
        .limit(limit + 1)
    ).all()
    following = str(start + limit) if len(rows) > limit else None
    return Slice(tuple(ChangedVerdict(*row) for row in rows[:limit]), following)


def number_of_changes(session: Session, base_id: str, head_id: str) -> int:
    """How many there are."""
    return session.scalar(select(func.count()).select_from(_changes(base_id, head_id))) or 0


def _changes(base_id: str, head_id: str) -> Subquery:
    """One grouping over both: joined with each other, 30,000 results take SQLite ten seconds.

    The names of targets are unique in an analysis: a class in both arms of an `if` is one.
    """
    both = union_all(_verdicts(base_id, _BASE), _verdicts(head_id, _HEAD)).subquery().c
    before, after = (func.max(case((both.side == side, both.verdict))) for side in (_BASE, _HEAD))
    position, result = (
        func.coalesce(*(func.max(case((both.side == side, column))) for side in (_HEAD, _BASE)))
        for column in (both.position, both.id)
    )
    return (
        select(
            both.name,
            both.check_name,
            both.device,
            before.label("before"),
            after.label("after"),
            func.max(both.side).label("side"),
            position.label("position"),
            result.label("id"),
        )
        .group_by(both.name, both.check_name, both.device)
        .having(before.is_distinct_from(after))
        .subquery()
    )


def _verdicts(analysis_id: str, side: int) -> Select[int, str, int, str, str, str, str]:
    row = CheckResultRow
    columns = (TargetRow.name, TargetRow.position, row.id, row.check_name, row.device, row.verdict)
    return (
        select(literal(side).label("side"), *columns)
        .join(TargetRow, TargetRow.id == row.target_id)
        .where(row.analysis_id == analysis_id)
    )


# ---------------------------------------------------------------------------------------------- what is judged by it


def base_checks(session: Session, analysis_id: str, names: Collection[str] | None = None) -> dict[CheckKey, BaseCheck]:
    """By target, check and device what the checks of an analysis said; of targets of these names only, if given."""
    row = CheckResultRow
    rows = session.execute(
        select(TargetRow.name, row.check_name, row.device, row.verdict, row.diagnosis)
        .join(TargetRow, TargetRow.id == row.target_id)
        .where(row.analysis_id == analysis_id, *_called(names))
    )
    return {
        (name, check, device): BaseCheck(verdict, None if diagnosis is None else str(diagnosis.get("cause")))
        for name, check, device, verdict, diagnosis in rows
    }


def base_devices(session: Session, analysis_id: str) -> frozenset[str]:
    """The devices that checks of an analysis ran on."""
    row = CheckResultRow
    return frozenset(session.scalars(select(row.device).where(row.analysis_id == analysis_id).distinct()))


def base_targets(session: Session, analysis_id: str, names: Collection[str] | None = None) -> dict[str, BaseTarget]:
    """By name the targets of an analysis; those of these names only, if given."""
    rows = session.execute(
        select(TargetRow.name, TargetRow.harness, TargetRow.not_run_reason).where(
            TargetRow.analysis_id == analysis_id, *_called(names)
        )
    )
    found: dict[str, BaseTarget] = {}
    for name, stored, reason in rows:
        harness = None if stored is None else Harness.model_validate(stored)
        found[name] = BaseTarget(
            constructor=None if harness is None else harness.constructor,
            inputs=() if harness is None else tuple(harness.inputs),
            has_harness=harness is not None,
            not_run_reason=reason,
        )
    return found


def earlier_verdicts(
    session: Session, analysis_id: str, project_id: str | None, names: Collection[str] | None = None
) -> dict[CheckKey, frozenset[str]]:
    """By failing check of the analysis, the verdicts that other analyses of the project have of the very same run.

    The same run: everything that results rest on is equal, told by the key under which they are reused.
    """
    row = CheckResultRow
    failing = session.execute(
        select(TargetRow.name, row.check_name, row.device, JobRow.reuse_key)
        .join(TargetRow, TargetRow.id == row.target_id)
        .join(JobRow, JobRow.id == row.job_id)
        .where(row.analysis_id == analysis_id, row.verdict == "fail", JobRow.reuse_key.is_not(None), *_called(names))
    ).all()
    keys = sorted({key for *_, key in failing if key is not None})
    seen: dict[tuple[str, str, str], set[str]] = {}
    for start in range(0, len(keys), 500):
        others = session.execute(
            select(JobRow.reuse_key, row.check_name, row.device, row.verdict)
            .join(JobRow, JobRow.id == row.job_id)
            .join(AnalysisRow, AnalysisRow.id == JobRow.analysis_id)
            .where(
                JobRow.reuse_key.in_(keys[start : start + 500]),
                JobRow.analysis_id != analysis_id,
                AnalysisRow.project_id.is_not_distinct_from(project_id),
            )
            .distinct()
        )
        for key, check, device, verdict in others:
            seen.setdefault((str(key), check, device), set()).add(verdict)
    return {
        (name, check, device): frozenset(seen[(str(key), check, device)])
        for name, check, device, key in failing
        if (str(key), check, device) in seen
    }


def _called(names: Collection[str] | None) -> tuple[ColumnElement[bool], ...]:
    return () if names is None else (TargetRow.name.in_(names),)
