"""Queries over targets and check results page by page, and their numbers: what lists and pages show. Never commits.

A page reads as many rows as it shows. The grid reads no evidence: that of a large analysis is hundreds of megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, func, select
from sqlalchemy.orm import Session

from services.checks.models import CheckResultRow, TargetRow
from services.checks.repository import check_info, class_in, target_result
from services.database.base import storable
from services.findings.model import TargetResult
from services.jobs.models import JobRow
from services.reports.document import CheckInfo
from services.reports.listing import CursorError, Slice, position_of

PAGE_LIMIT: Final = 200
_CHECK_CURSOR: Final = re.compile(r"([0-9]{1,9})\.([0-9a-z]{1,40})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TargetSelection:
    """Which targets are wanted; `path` is a file, or a directory that ends in `/`, `run` whether a check ran.

    `verdict` asks for targets with a check of this verdict, `reason` for those that were not run for this reason.
    """

    kind: str | None = None
    path: str | None = None
    run: bool | None = None
    verdict: str | None = None
    reason: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class CheckSelection:
    """Which check results are wanted; `target` is the name of one."""

    check: str | None = None
    verdict: str | None = None
    device: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedTarget:
    """A target with its results; `position` is what addresses of pages name it by."""

    position: int
    result: TargetResult


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """A check result with the name of its target."""

    target: str
    check: CheckInfo


@dataclass(frozen=True, slots=True)
class GridCell:
    """One check of a target on one device, and what it said."""

    check: str
    device: str
    verdict: str


@dataclass(frozen=True, slots=True)
class GridRow:
    """A target and the verdicts of its checks, for the picture of an analysis at a glance."""

    position: int
    name: str
    kind: str
    path: str
    line: int
    not_run_reason: str | None
    reused: bool
    cells: tuple[GridCell, ...]


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """How many targets were not run for a reason (None: there is none), with or without any check."""

    reason: str | None
    has_checks: bool
    count: int


def page_of_targets(
    session: Session, analysis_id: str, wanted: TargetSelection, *, limit: int, cursor: str | None = None
) -> Slice[PlacedTarget]:
    """Targets with all their results, in the order of path and line. Raises `CursorError`."""
    limit = max(1, min(limit, PAGE_LIMIT))
    rows = session.scalars(
        select(TargetRow)
        .where(TargetRow.analysis_id == analysis_id, TargetRow.position >= position_of(cursor), *_of_target(wanted))
        .order_by(TargetRow.position)
        .limit(limit + 1)
    ).all()
    results = _results(session, [row.id for row in rows[:limit]])
    following = str(rows[limit - 1].position + 1) if len(rows) > limit else None
    return Slice(
        tuple(PlacedTarget(row.position, target_result(row, results.get(row.id, ()))) for row in rows[:limit]),
        following,
    )


def find_target(session: Session, analysis_id: str, position: int) -> PlacedTarget | None:
    """The target at this position, with its results."""
    return _placed(session, TargetRow.analysis_id == analysis_id, TargetRow.position == position)


def find_target_named(session: Session, analysis_id: str, name: str) -> PlacedTarget | None:
    """The target with this name, with its results."""
    return _placed(session, TargetRow.analysis_id == analysis_id, TargetRow.name == name)


def page_of_checks(
    session: Session, analysis_id: str, wanted: CheckSelection, *, limit: int, cursor: str | None = None
) -> Slice[TargetCheck]:
    """Check results in the order of their targets. Raises `CursorError`."""
    limit = max(1, min(limit, PAGE_LIMIT))
    # Which ones first, and then those: sorting would carry the evidence of all of them along.
    chosen = (
        select(TargetRow.position, CheckResultRow.id)
        .join(TargetRow, TargetRow.id == CheckResultRow.target_id)
        .where(CheckResultRow.analysis_id == analysis_id, *_of_check(wanted), *_behind(cursor))
        .order_by(TargetRow.position, CheckResultRow.id)
        .limit(limit + 1)
    )
    found = session.execute(chosen).all()
    rows = session.execute(
        select(CheckResultRow, TargetRow.name)
        .join(TargetRow, TargetRow.id == CheckResultRow.target_id)
        .where(CheckResultRow.id.in_([check_id for _, check_id in found[:limit]]))
        .order_by(TargetRow.position, CheckResultRow.id)
    )
    following = ".".join(map(str, found[limit - 1])) if len(found) > limit else None
    return Slice(tuple(TargetCheck(name, check_info(row)) for row, name in rows), following)


def page_of_grid(
    session: Session, analysis_id: str, wanted: TargetSelection, *, limit: int, cursor: str | None = None
) -> Slice[GridRow]:
    """The verdicts of all checks by target, without what they say. Up to ten times as many rows as of other pages."""
    limit = max(1, min(limit, 10 * PAGE_LIMIT))
    row = TargetRow
    targets = session.execute(
        select(row.id, row.position, row.name, row.kind, row.path, row.line, row.not_run_reason, row.reused)
        .where(row.analysis_id == analysis_id, row.position >= position_of(cursor), *_of_target(wanted))
        .order_by(row.position)
        .limit(limit + 1)
    ).all()
    cells: dict[str, list[GridCell]] = {}
    shown = [target.id for target in targets[:limit]]
    for start in range(0, len(shown), 500):
        for target_id, *cell in session.execute(
            select(CheckResultRow.target_id, CheckResultRow.check_name, CheckResultRow.device, CheckResultRow.verdict)
            .where(CheckResultRow.target_id.in_(shown[start : start + 500]))
            .order_by(CheckResultRow.id)
        ):
            cells.setdefault(target_id, []).append(GridCell(*cell))
    following = str(targets[limit - 1].position + 1) if len(targets) > limit else None
    return Slice(
        tuple(GridRow(*target[1:], cells=tuple(cells.get(target.id, ()))) for target in targets[:limit]), following
    )


def groups_of_targets(session: Session, analysis_id: str) -> tuple[TargetGroup, ...]:
    """How many targets there are, by why they were not run and whether a check of them was."""
    checked = _is_checked().label("checked")
    told = (
        select(TargetRow.not_run_reason.label("reason"), checked).where(TargetRow.analysis_id == analysis_id).subquery()
    )
    rows = session.execute(select(told.c.reason, told.c.checked, func.count()).group_by(told.c.reason, told.c.checked))
    return tuple(TargetGroup(reason, bool(has_checks), count) for reason, has_checks, count in rows)


def numbers_of_verdicts(session: Session, analysis_id: str) -> dict[str, int]:
    """How many check results there are by verdict."""
    rows = session.execute(
        select(CheckResultRow.verdict, func.count())
        .where(CheckResultRow.analysis_id == analysis_id)
        .group_by(CheckResultRow.verdict)
    )
    return dict(rows.all())


def verdicts_of(session: Session, analysis_id: str, names: Collection[str] | None = None) -> tuple[TargetResult, ...]:
    """The targets of an analysis with the verdicts of their checks, and without what those say: for a gate.

    Of targets of these names only, if given.
    """
    row = CheckResultRow
    of_analysis: tuple[ColumnElement[bool], ...] = (row.analysis_id == analysis_id,)
    named: tuple[ColumnElement[bool], ...] = (TargetRow.analysis_id == analysis_id,)
    if names is not None:
        named = (*named, TargetRow.name.in_(names))
        of_analysis = (*of_analysis, row.target_id.in_(select(TargetRow.id).where(*named)))
    results: dict[str, list[CheckInfo]] = {}
    failing = session.execute(select(row.id, row.evidence).where(*of_analysis, row.verdict == "fail"))
    classes = {check_id: class_in(evidence) for check_id, evidence in failing}
    rows = session.execute(
        select(row.id, row.target_id, row.check_name, row.verdict, row.device)
        .where(*of_analysis)
        .order_by(row.target_id, row.id)
    )
    for check_id, target_id, name, verdict, device in rows:
        results.setdefault(target_id, []).append(
            CheckInfo(
                check=name,
                verdict=verdict,
                device=device,
                summary="",
                duration_s=0.0,
                baseline_class=classes.get(check_id),
            )
        )
    targets = session.scalars(select(TargetRow).where(*named).order_by(TargetRow.position))
    return tuple(target_result(target, results.get(target.id, ())) for target in targets)


def _placed(session: Session, *conditions: ColumnElement[bool]) -> PlacedTarget | None:
    row = session.scalars(select(TargetRow).where(*conditions).order_by(TargetRow.position).limit(1)).first()
    if row is None:
        return None
    return PlacedTarget(row.position, target_result(row, _results(session, [row.id]).get(row.id, ())))


def _results(session: Session, target_ids: Collection[str]) -> dict[str, list[CheckInfo]]:
    found: dict[str, list[CheckInfo]] = {}
    rows = session.scalars(
        select(CheckResultRow)
        .join(JobRow, JobRow.id == CheckResultRow.job_id)
        .where(CheckResultRow.target_id.in_(target_ids))
        .order_by(CheckResultRow.target_id, JobRow.device_class, CheckResultRow.id)
    )
    for row in rows:
        found.setdefault(row.target_id, []).append(check_info(row))
    return found


def _is_checked(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(CheckResultRow.target_id == TargetRow.id, *conditions).correlate(TargetRow)


def _of_target(wanted: TargetSelection) -> Iterator[ColumnElement[bool]]:
    if wanted.kind is not None:
        yield TargetRow.kind == wanted.kind
    if wanted.path is not None:
        lies_in = TargetRow.path.startswith(storable(wanted.path), autoescape=True)
        yield lies_in if wanted.path.endswith("/") else TargetRow.path == wanted.path
    if wanted.run is not None:
        yield _is_checked() if wanted.run else ~_is_checked()
    if wanted.verdict is not None:
        yield _is_checked(CheckResultRow.verdict == wanted.verdict)
    if wanted.reason is not None:
        yield TargetRow.not_run_reason == wanted.reason
    if wanted.text:
        yield func.lower(TargetRow.name).contains(storable(wanted.text.lower()), autoescape=True)


def _of_check(wanted: CheckSelection) -> Iterator[ColumnElement[bool]]:
    columns = (
        (CheckResultRow.check_name, wanted.check),
        (CheckResultRow.verdict, wanted.verdict),
        (CheckResultRow.device, wanted.device),
        (TargetRow.name, wanted.target),
    )
    for column, value in columns:
        if value is not None:
            yield column == value


def _behind(cursor: str | None) -> Iterator[ColumnElement[bool]]:
    if cursor is None:
        return
    read = _CHECK_CURSOR.fullmatch(cursor)
    if read is None:
        raise CursorError("the cursor is none that a page gave", cursor=cursor[:50])
    position, check_id = int(read[1]), read[2]
    yield (TargetRow.position > position) | and_(TargetRow.position == position, CheckResultRow.id > check_id)
