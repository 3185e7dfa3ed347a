"""Queries over the findings of projects and what happened to them: rows in, plain values out. Never commits.

Every list has a limit and a cursor; a page costs a few index look-ups, however many findings a project has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import ColumnElement, Select, case, func, or_, select
from sqlalchemy.orm import Session

from analyzer.registry import rule as rule_called
from services.accounts.access import Subject, belongs_to_readable, readable_by, readable_projects
from services.database.base import storable
from services.projects.models import ProjectRow
from services.projects.settings import InvalidProjectSettingsError, ProjectSettings, read_project_settings
from services.reports.listing import CursorError
from services.triage.model import (
    NOBODY,
    SEVERITIES,
    UNDECIDED,
    Facets,
    FindingFilter,
    FindingPage,
    History,
    NamedCount,
    ProjectFinding,
    RulePrecision,
    Standing,
    TriageEvent,
    Until,
)
from services.triage.models import ProjectFindingRow, TriageEventRow

log = structlog.get_logger(__name__)

PAGE_LIMIT: Final = 200
_FACETS: Final = 50
_NAMED_PROJECTS: Final = 500
_RULES: Final = 1_000
_PROJECTS: Final = 100
_STATES: Final = ("open", "regressed", "accepted", "false_positive", "fixed")


def settings_of(session: Session, project_id: str | None) -> ProjectSettings:
    """What a project has set for itself; the defaults for what belongs to none, or was set by a newer Gradproof."""
    if project_id is None:
        return ProjectSettings()
    stored = session.scalar(select(ProjectRow.settings).where(ProjectRow.id == project_id))
    try:
        return read_project_settings(stored or {})
    except InvalidProjectSettingsError as error:
        log.warning("project_settings_unreadable", project=project_id, reason=error.message)
        return ProjectSettings()


def readable_of(session: Session, subject: Subject, project_ids: Collection[str]) -> Sequence[str]:
    """Those of these projects, at most a hundred, that the subject may read."""
    asked = select(ProjectRow.id).where(ProjectRow.id.in_(list(project_ids)[:_PROJECTS]))
    return session.scalars(readable_by(asked, ProjectRow.id, subject)).all()


# ---------------------------------------------------------------------------------------------- findings


def of_project(project_id: str) -> ColumnElement[bool]:
    """The findings of one project."""
    return ProjectFindingRow.project_id == project_id


def of_readable_projects(session: Session, subject: Subject) -> ColumnElement[bool]:
    """The findings of all projects that the subject may read.

    They are named where they are few enough, so that the indexes of projects are used: without, or with a subquery,
    each of the fifteen parts of a page would be looked for among all findings.
    """
    named = session.scalars(readable_projects(subject).limit(_NAMED_PROJECTS + 1)).all()
    if len(named) > _NAMED_PROJECTS:
        return belongs_to_readable(ProjectFindingRow.project_id, subject)
    return ProjectFindingRow.project_id.in_(named)


def page_of_findings(
    session: Session, scope: ColumnElement[bool], wanted: FindingFilter, *, limit: int, cursor: str | None = None
) -> FindingPage:
    """Findings of a project, or of all, the gravest first and of those the newest. Raises `CursorError`.

    One query for each severity and state: each reads an index from its end and stops at the limit, which one query
    over several states can't.
    """
    limit = max(1, min(limit, PAGE_LIMIT))
    rank, before = _read_cursor(cursor)
    rows: list[ProjectFindingRow] = []
    for severity in range(rank, len(SEVERITIES)):
        if wanted.severities and SEVERITIES[severity] not in wanted.severities:
            continue
        groups = [
            session.scalars(
                filtered(select(ProjectFindingRow), scope, wanted, without=("states", "severities"))
                .where(
                    ProjectFindingRow.state == state,
                    ProjectFindingRow.severity_rank == severity,
                    *([ProjectFindingRow.id < before] if before is not None and severity == rank else []),
                )
                .order_by(ProjectFindingRow.id.desc())
                .limit(limit + 1 - len(rows))
            ).all()
            for state in wanted.states or _STATES
        ]
        rows.extend(heapq.merge(*groups, key=lambda row: row.id, reverse=True))
        if len(rows) > limit:
            break
    last = rows[limit - 1] if len(rows) > limit else None
    return FindingPage(
        tuple(finding_of(row) for row in rows[:limit]), None if last is None else f"{last.severity_rank}.{last.id}"
    )


def find_finding(session: Session, project_id: str, fingerprint: str) -> ProjectFinding | None:
    """The finding of a project with this fingerprint."""
    row = find_row(session, project_id, fingerprint)
    return None if row is None else finding_of(row)


def find_row(session: Session, project_id: str, fingerprint: str) -> ProjectFindingRow | None:
    """Its row."""
    return session.scalars(
        select(ProjectFindingRow).where(
            ProjectFindingRow.project_id == project_id, ProjectFindingRow.fingerprint == fingerprint
        )
    ).first()


def facets(session: Session, scope: ColumnElement[bool], wanted: FindingFilter) -> Facets:
    """How many findings there are by each value of each filter."""
    row = ProjectFindingRow
    counted = filtered(
        select(row.state, row.severity, row.verdict, row.on_main, func.count()),
        scope,
        wanted,
        without=("states", "severities", "verdicts", "on_main"),
    ).group_by(row.state, row.severity, row.verdict, row.on_main)
    groups = session.execute(counted).all()

    def fits(group: Sequence[Any], without: int) -> bool:
        chosen = (
            not wanted.states or group[0] in wanted.states,
            not wanted.severities or group[1] in wanted.severities,
            not wanted.verdicts or group[2] in wanted.verdicts,
            wanted.on_main is None or group[3] == wanted.on_main,
        )
        return all(fit for number, fit in enumerate(chosen) if number != without)

    def by(column: int) -> dict[Any, int]:
        counts: Counter[Any] = Counter()
        for group in groups:
            if fits(group, column):
                counts[group[column]] += group[4]
        return dict(counts)

    return Facets(
        total=sum(group[4] for group in groups if fits(group, -1)),
        states=by(0),
        severities=by(1),
        verdicts=by(2),
        on_main=by(3),
        rules=_rules(session, scope, wanted),
        assignees=_assignees(session, scope, wanted, sum(group[4] for group in groups if fits(group, -1))),
    )


def standings(session: Session, project_ids: Collection[str]) -> dict[str, Standing]:
    """What is still to be decided about on the main line of these projects."""
    row = ProjectFindingRow
    rows = session.execute(
        select(row.project_id, row.severity, func.count())
        .where(row.project_id.in_(project_ids), row.state.in_(UNDECIDED), row.on_main)
        .group_by(row.project_id, row.severity)
    ).all()
    counts: dict[str, dict[str, int]] = {project_id: {} for project_id in project_ids}
    for project_id, severity, number in rows:
        counts[project_id][severity] = number
    return {project_id: Standing(project_id, **of_project) for project_id, of_project in counts.items()}


def rule_precision(session: Session, subject: Subject, project_id: str | None = None) -> tuple[RulePrecision, ...]:
    """By rule what became of its findings, in one project or in all that the subject may read."""
    row = ProjectFindingRow
    genuine = (row.state != "false_positive") & (row.state.in_(("accepted", "fixed")) | (row.verdict == "confirmed"))
    counted = {
        "total": func.count(),
        "confirmed": _number(row.verdict == "confirmed"),
        "not_reproduced": _number(row.verdict == "not_reproduced"),
        "open": _number(row.state.in_(UNDECIDED)),
        "accepted": _number(row.state == "accepted"),
        "false_positive": _number(row.state == "false_positive"),
        "fixed": _number(row.state == "fixed"),
        "genuine": _number(genuine),
    }
    labelled = (column.label(name) for name, column in counted.items())
    statement = readable_by(select(row.rule, func.min(row.name).label("name"), *labelled), row.project_id, subject)
    if project_id is not None:
        statement = statement.where(row.project_id == project_id)
    rows = session.execute(statement.group_by(row.rule).order_by(row.rule).limit(_RULES)).mappings()
    return tuple(RulePrecision(**values) for values in rows)


# ---------------------------------------------------------------------------------------------- history


def history(session: Session, finding_id: str, *, limit: int, cursor: str | None = None) -> History:
    """What happened to a finding, the newest first. Raises `CursorError`."""
    limit = max(1, min(limit, PAGE_LIMIT))
    statement = select(TriageEventRow).where(TriageEventRow.finding_id == finding_id)
    if cursor is not None:
        if not (cursor.isascii() and cursor.isalnum()):
            raise CursorError("the cursor is none that a page gave", cursor=cursor[:50])
        statement = statement.where(TriageEventRow.id < cursor)
    rows = session.scalars(statement.order_by(TriageEventRow.id.desc()).limit(limit + 1)).all()
    items = tuple(_event(row) for row in rows[:limit])
    return History(items, items[-1].id if len(rows) > limit else None)


# ---------------------------------------------------------------------------------------------- parts


def filtered(
    statement: Select[*tuple[Any, ...]],
    scope: ColumnElement[bool],
    wanted: FindingFilter,
    *,
    without: Collection[str] = (),
) -> Select[*tuple[Any, ...]]:
    return statement.where(
        scope,
        *(condition for name, condition in _conditions(wanted) if name not in without),
    )


def _conditions(wanted: FindingFilter) -> Iterator[tuple[str, ColumnElement[bool]]]:
    row = ProjectFindingRow
    if wanted.states:
        yield "states", row.state.in_(wanted.states)
    if wanted.severities:
        yield "severities", row.severity.in_(wanted.severities)
    if wanted.verdicts:
        yield "verdicts", row.verdict.in_(wanted.verdicts)
    if wanted.rule is not None:
        yield "rule", or_(row.name == wanted.rule, row.rule.startswith(storable(wanted.rule), autoescape=True))
    if wanted.path is not None:
        lies_in = row.path.startswith(storable(wanted.path), autoescape=True)
        yield "path", lies_in if wanted.path.endswith("/") else row.path == wanted.path
    if wanted.assignee is not None:
        nobody = wanted.assignee == NOBODY
        yield "assignee", row.assignee_id.is_(None) if nobody else row.assignee_id == wanted.assignee
    if wanted.on_main is not None:
        yield "on_main", row.on_main.is_(wanted.on_main)
    if wanted.text:
        texts = (row.message, row.path, row.symbol, row.fingerprint)
        yield (
            "text",
            or_(*(func.lower(text).contains(storable(wanted.text.lower()), autoescape=True) for text in texts)),
        )


def _rules(session: Session, scope: ColumnElement[bool], wanted: FindingFilter) -> tuple[NamedCount, ...]:
    """By rule. Names are not grouped by: the index has rules and states, and reading rows would cost ten times more."""
    row = ProjectFindingRow
    counted = filtered(select(row.rule, func.count()), scope, wanted, without=("rule",)).group_by(row.rule)
    rows = session.execute(counted.order_by(func.count().desc(), row.rule).limit(_FACETS)).all()
    return tuple(NamedCount(rule, _name_of(session, scope, rule), number) for rule, number in rows)


def _name_of(session: Session, scope: ColumnElement[bool], rule: str) -> str:
    known = rule_called(rule)
    if known is not None:
        return known.name
    return session.scalar(select(ProjectFindingRow.name).where(scope, ProjectFindingRow.rule == rule).limit(1)) or ""


def _assignees(
    session: Session, scope: ColumnElement[bool], wanted: FindingFilter, total: int
) -> tuple[NamedCount, ...]:
    """By person; `total` is how many the filter takes. Few have anybody: those of nobody are what is left."""
    row = ProjectFindingRow
    counted = filtered(
        select(row.assignee_id, func.min(row.assignee_name), func.count()), scope, wanted, without=("assignee",)
    ).where(row.assignee_id.is_not(None))
    rows = session.execute(counted.group_by(row.assignee_id)).all()
    if wanted.assignee is not None:
        total = session.scalar(filtered(select(func.count()), scope, wanted, without=("assignee",))) or 0
    nobody = total - sum(number for *_, number in rows)
    found = [(NOBODY, "", nobody)] if nobody else []
    found += [(key, name or "", number) for key, name, number in rows if key is not None]
    found.sort(key=lambda item: (-item[2], item[0]))
    return tuple(NamedCount(*item) for item in found[:_FACETS])


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _read_cursor(cursor: str | None) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    rank, _, before = cursor.partition(".")
    if rank not in {"0", "1", "2"} or not (before.isascii() and before.isalnum()):
        raise CursorError("the cursor is none that a page gave", cursor=cursor[:50])
    return int(rank), before


def finding_of(row: ProjectFindingRow) -> ProjectFinding:
    """A row as a plain value."""
    return ProjectFinding(
        id=row.id,
        project_id=row.project_id,
        fingerprint=row.fingerprint,
        state=row.state,  # type: ignore[arg-type]
        reason=row.reason,
        decided_by=row.decided_by,
        decided_by_name=row.decided_by_name,
        decided_at=row.decided_at,
        until=Until(row.until_date, row.until_occurrences, row.until_torch),
        occurrences=row.occurrences,
        assignee_id=row.assignee_id,
        assignee_name=row.assignee_name,
        rule=row.rule,
        name=row.name,
        severity=row.severity,
        path=row.path,
        line=row.line,
        symbol=row.symbol,
        message=row.message,
        verdict=row.verdict,  # type: ignore[arg-type]
        on_main=row.on_main,
        first_analysis_id=row.first_analysis_id,
        last_analysis_id=row.last_analysis_id,
        first_seen_at=row.first_seen_at,
        last_seen_at=row.last_seen_at,
        fixed_at=row.fixed_at,
    )


def _event(row: TriageEventRow) -> TriageEvent:
    return TriageEvent(
        id=row.id,
        at=row.at,
        actor_kind=row.actor_kind,
        actor_id=row.actor_id,
        actor_name=row.actor_name,
        kind=row.kind,
        before=row.before,
        after=row.after,
        text=row.text,
        details=row.details,
    )
