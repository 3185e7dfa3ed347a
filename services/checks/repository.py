"""Queries over targets and check results: rows in, plain values out. This module never commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from analyzer.eligibility import TOLD_FROM_SOURCE
from analyzer.findings import TargetDeclaration, TargetKind
from services.checks.models import CheckResultRow, TargetRow
from services.findings.model import TargetResult
from services.jobs.models import OPEN_STATES, JobRow
from services.reports.document import CheckClassName, CheckInfo, Diagnosis, Harness

# Ids in one statement: databases limit its parameters, SQLite to 32,766.
_AT_ONCE: Final = 1_000
# The key beside the evidence of a check under which it is kept what it is, seen from the base. Never a part of results
# that other analyses take over: they have a base of their own.
_COMPARED: Final = "compared with the base"


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A target as reading found it, with what the repository declares about it and what rules suspect in it.

    `mined` are the calls that its own examples make, `turn` its place in the order of running. `not_run` says why it
    can't be run, if reading knows that already.
    """

    declaration: TargetDeclaration
    declared: Mapping[str, object] | None = None
    hypotheses: tuple[Mapping[str, object], ...] = field(default=())
    mined: tuple[Mapping[str, object], ...] = ()
    turn: int = 0
    not_run: tuple[str, str] | None = None
    content_key: str | None = None


def store_targets(session: Session, analysis_id: str, plans: Iterable[TargetPlan]) -> None:
    """Store targets in the order given; whatever the analysis had before is replaced."""
    session.execute(delete(TargetRow).where(TargetRow.analysis_id == analysis_id))
    rows = [
        TargetRow(
            analysis_id=analysis_id,
            position=position,
            name=plan.declaration.name,
            kind=plan.declaration.kind.value,
            path=plan.declaration.path,
            line=plan.declaration.line,
            end_line=plan.declaration.end_line,
            import_root=plan.declaration.import_root,
            module=plan.declaration.module,
            qualname=plan.declaration.qualname,
            declared=None if plan.declared is None else dict(plan.declared),
            hypotheses=[dict(hypothesis) for hypothesis in plan.hypotheses],
            turn=plan.turn,
            content_key=plan.content_key,
            not_run_reason=None if plan.not_run is None else plan.not_run[0],
            not_run_detail=None if plan.not_run is None else plan.not_run[1],
        )
        for position, plan in enumerate(plans)
    ]
    session.add_all(rows)
    session.flush()


def store_mined(session: Session, analysis_id: str, mined: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Store recorded calls with the targets of these names; names that the analysis does not have are passed over."""
    ids = session.execute(select(TargetRow.id, TargetRow.name).where(TargetRow.analysis_id == analysis_id))
    known = [
        {"id": target_id, "mined": [dict(call) for call in mined[name]]} for target_id, name in ids if name in mined
    ]
    if known:
        session.execute(update(TargetRow), known)


def names_of(session: Session, analysis_id: str) -> Sequence[str]:
    """The names of all targets of an analysis that can be run."""
    return session.scalars(
        select(TargetRow.name)
        .where(TargetRow.analysis_id == analysis_id, TargetRow.not_run_reason.is_(None))
        .order_by(TargetRow.turn)
    ).all()


def in_order_of_running(session: Session, analysis_id: str) -> Sequence[str]:
    """The ids of all targets of an analysis that can be run."""
    return session.scalars(
        select(TargetRow.id)
        .where(TargetRow.analysis_id == analysis_id, TargetRow.not_run_reason.is_(None))
        .order_by(TargetRow.turn)
    ).all()


def load_plans(session: Session, target_ids: Collection[str]) -> dict[str, TargetPlan]:
    """The targets with these ids."""
    rows = session.scalars(select(TargetRow).where(TargetRow.id.in_(target_ids)))
    return {
        row.id: TargetPlan(_declaration(row), row.declared, tuple(row.hypotheses), tuple(row.mined), row.turn)
        for row in rows
    }


def record_harness(session: Session, target_id: str, harness: Harness, kind: str | None = None) -> None:
    """How the target was built and called. A harness on any device counts: it clears a reason for not running.

    `kind` is what it turned out to be, if reading could not tell.
    """
    told = {} if kind is None else {"kind": kind}
    session.execute(
        update(TargetRow)
        .where(TargetRow.id == target_id)
        .values(harness=harness.model_dump(mode="json"), not_run_reason=None, not_run_detail=None, **told)
    )


def record_not_run(session: Session, target_id: str, reason: str, detail: str) -> None:
    """Why no check of the target could run; nothing happens if one could on another device."""
    session.execute(
        update(TargetRow)
        .where(TargetRow.id == target_id, TargetRow.harness.is_(None))
        .values(not_run_reason=reason, not_run_detail=detail)
    )


def record_not_begun(session: Session, target_ids: Collection[str], reason: str, detail: str) -> None:
    """Why these targets were never begun; nothing happens to those of which something is known."""
    wanted = sorted(target_ids)
    for start in range(0, len(wanted), _AT_ONCE):
        session.execute(
            update(TargetRow)
            .where(
                TargetRow.id.in_(wanted[start : start + _AT_ONCE]),
                TargetRow.harness.is_(None),
                TargetRow.not_run_reason.is_(None),
            )
            .values(not_run_reason=reason, not_run_detail=detail)
        )


def with_harness(session: Session, analysis_id: str) -> frozenset[str]:
    """The ids of the targets of an analysis that could be built and called."""
    return frozenset(
        session.scalars(
            select(TargetRow.id).where(TargetRow.analysis_id == analysis_id, TargetRow.harness.is_not(None))
        )
    )


def record_check(session: Session, *, analysis_id: str, target_id: str, job_id: str, check: CheckInfo) -> bool:
    """Store the result of one check of one job; False if there is one already, which stays."""
    present = session.scalar(
        select(CheckResultRow.id).where(CheckResultRow.job_id == job_id, CheckResultRow.check_name == check.check)
    )
    if present is not None:
        return False
    session.add(
        CheckResultRow(
            analysis_id=analysis_id,
            target_id=target_id,
            job_id=job_id,
            check_name=check.check,
            verdict=check.verdict,
            device=check.device,
            summary=check.summary,
            diagnosis=None if check.diagnosis is None else check.diagnosis.model_dump(mode="json"),
            path=check.path,
            line=check.line,
            evidence=check.evidence,
            repro=check.repro,
            duration_s=check.duration_s,
        )
    )
    session.flush()
    return True


def forget_results(session: Session, job_ids: Collection[str]) -> None:
    """Drop what an earlier, lost attempt of these jobs had already stored: the new attempt says it again."""
    session.execute(delete(CheckResultRow).where(CheckResultRow.job_id.in_(job_ids)))


def recorded_checks(session: Session, job_id: str) -> frozenset[str]:
    """The names of the checks that have a result for this job."""
    return frozenset(session.scalars(select(CheckResultRow.check_name).where(CheckResultRow.job_id == job_id)))


def has_harness(session: Session, target_id: str) -> bool:
    """Whether the target could be built and called."""
    return session.scalar(select(TargetRow.harness).where(TargetRow.id == target_id)) is not None


def load_targets(session: Session, analysis_id: str) -> tuple[TargetResult, ...]:
    """All targets of an analysis with the results so far, in the order of path and line."""
    results: dict[str, list[CheckInfo]] = {}
    rows = session.scalars(
        select(CheckResultRow)
        .join(JobRow, JobRow.id == CheckResultRow.job_id)
        .where(CheckResultRow.analysis_id == analysis_id)
        .order_by(CheckResultRow.target_id, JobRow.device_class, CheckResultRow.id)
    )
    for row in rows:
        results.setdefault(row.target_id, []).append(check_info(row))
    targets = session.scalars(
        select(TargetRow).where(TargetRow.analysis_id == analysis_id).order_by(TargetRow.position)
    )
    return tuple(target_result(row, results.get(row.id, ())) for row in targets)


def target_result(row: TargetRow, checks: Iterable[CheckInfo]) -> TargetResult:
    """A row with its results as the value that settling, gates and reports work on."""
    return TargetResult(
        declaration=_declaration(row),
        harness=None if row.harness is None else Harness.model_validate(row.harness),
        not_run_reason=row.not_run_reason,
        not_run_detail=row.not_run_detail or "",
        checks=tuple(checks),
        reused=row.reused,
    )


def count_results(session: Session, analysis_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """By analysis, how many check results it has so far, and how many of them belong to jobs that have not ended."""
    rows = session.execute(
        select(CheckResultRow.analysis_id, JobRow.state, func.count(CheckResultRow.id))
        .join(JobRow, JobRow.id == CheckResultRow.job_id)
        .where(CheckResultRow.analysis_id.in_(analysis_ids))
        .group_by(CheckResultRow.analysis_id, JobRow.state)
    )
    counts: dict[str, tuple[int, int]] = {}
    for analysis_id, state, number in rows:
        results, of_open_jobs = counts.get(analysis_id, (0, 0))
        counts[analysis_id] = (results + number, of_open_jobs + number * (state in OPEN_STATES))
    return counts


def check_info(row: CheckResultRow) -> CheckInfo:
    """One result as the report knows it."""
    evidence = dict(row.evidence)
    told: dict[str, Any] = evidence.pop(_COMPARED, None) or {}  # type: ignore[assignment]
    return CheckInfo(
        check=row.check_name,
        verdict=row.verdict,
        device=row.device,
        summary=row.summary,
        diagnosis=None if row.diagnosis is None else Diagnosis.model_validate(row.diagnosis),
        path=row.path,
        line=row.line,
        evidence=evidence,
        repro=row.repro,
        duration_s=row.duration_s,
        baseline_class=told.get("class"),
        baseline_reason=told.get("reason"),
    )


def class_in(evidence: Mapping[str, Any]) -> CheckClassName | None:
    """What a failing check is, seen from the base, if that was kept beside its evidence."""
    told = evidence.get(_COMPARED) or {}
    found: CheckClassName | None = told.get("class")
    return found


def record_classes(session: Session, analysis_id: str, targets: Iterable[TargetResult]) -> None:
    """Keep with each failing check what it is, seen from the base of its analysis."""
    classes = {
        (target.declaration.name, check.check, check.device): {
            "class": check.baseline_class,
            "reason": check.baseline_reason,
        }
        for target in targets
        for check in target.checks
        if check.baseline_class is not None
    }
    if not classes:
        return
    rows = session.execute(
        select(CheckResultRow, TargetRow.name)
        .join(TargetRow, TargetRow.id == CheckResultRow.target_id)
        .where(CheckResultRow.analysis_id == analysis_id, CheckResultRow.verdict == "fail")
    )
    for row, name in rows:
        told = classes.get((name, row.check_name, row.device))
        if told is not None:
            row.evidence = {**row.evidence, _COMPARED: told}
    session.flush()


def _declaration(row: TargetRow) -> TargetDeclaration:
    return TargetDeclaration(
        name=row.name,
        kind=TargetKind(row.kind),
        path=row.path,
        line=row.line,
        end_line=row.end_line,
        import_root=row.import_root,
        module=row.module,
        qualname=row.qualname,
        why_not=(row.not_run_reason or "") if row.not_run_detail == TOLD_FROM_SOURCE else "",
    )
