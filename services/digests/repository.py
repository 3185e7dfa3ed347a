"""Queries behind digests: whose is due, what there is to tell them, the outbox. Never commits.

Everything that is told goes through `readable_by`: what its receiver may not read is neither named nor counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from services.accounts.access import Subject, readable_by
from services.accounts.models import ApiTokenRow, UserRow
from services.digests.model import (
    MOST_FINDINGS,
    MOST_PROJECTS,
    Group,
    NamedFinding,
    ProjectNews,
    Window,
    shares,
)
from services.digests.models import DigestMailRow, DigestRow
from services.projects.models import ProjectRow
from services.triage.model import UNDECIDED
from services.triage.models import ProjectFindingRow, TriageEventRow

# What stands is told where something happened, and is no reason to tell anything.
_STANDING: Final = "yours"


def due_digests(session: Session, now: datetime, limit: int) -> Sequence[str]:
    """Up to `limit` people whose digest is due, the longest due first."""
    return session.scalars(
        select(DigestRow.user_id).where(DigestRow.due_at <= now).order_by(DigestRow.due_at).limit(limit)
    ).all()


def receiver(session: Session, user_id: str) -> UserRow | None:
    """The user, unless mail can't or must not reach it."""
    return session.scalars(
        select(UserRow).where(UserRow.id == user_id, UserRow.disabled_at.is_(None), UserRow.email.is_not(None))
    ).one_or_none()


def move_on(session: Session, row: DigestRow, *, told_until: datetime, due_at: datetime) -> bool:
    """Begin the next period; False if that was done, or another one chosen, since `row` was read."""
    moved = session.scalar(
        update(DigestRow)
        .where(
            DigestRow.user_id == row.user_id,
            DigestRow.period == row.period,
            DigestRow.told_until == row.told_until,
            DigestRow.due_at == row.due_at,
        )
        .values(told_until=told_until, due_at=due_at)
        .returning(DigestRow.user_id)
        .execution_options(synchronize_session=False)
    )
    return moved is not None


# ---------------------------------------------------------------------------------------------- what there is to tell


def news(session: Session, subject: Subject, window: Window) -> tuple[tuple[ProjectNews, ...], int]:
    """What there is to tell `subject`, of twenty projects at most, and of how many there would be more."""
    assert subject.user_id is not None
    kinds = _kinds(subject.user_id, window)
    happened = or_(
        *(
            select(ProjectFindingRow.id).where(ProjectFindingRow.project_id == ProjectRow.id, condition).exists()
            for kind, condition in kinds.items()
            if kind != _STANDING
        )
    )
    statement = readable_by(select(ProjectRow.id, ProjectRow.name), ProjectRow.id, subject).where(
        ProjectRow.archived_at.is_(None), happened
    )
    places = session.execute(statement.order_by(ProjectRow.name).limit(MOST_PROJECTS)).all()
    total = len(places)
    if total == MOST_PROJECTS:
        total = session.scalar(select(func.count()).select_from(statement.subquery())) or 0
    return tuple(_of_project(session, place.id, place.name, kinds) for place in places), total - len(places)


def readable_of(session: Session, subject: Subject, project_ids: Collection[str]) -> frozenset[str]:
    """Those of these projects that the subject may read."""
    asked = select(ProjectRow.id).where(ProjectRow.id.in_(project_ids))
    return frozenset(session.scalars(readable_by(asked, ProjectRow.id, subject)))


def _kinds(user_id: str, window: Window) -> dict[str, ColumnElement[bool]]:
    """By what is told, which findings it is told of, in the order of a mail."""
    row = ProjectFindingRow
    came = and_(row.on_main, row.main_since > window.since, row.main_since <= window.until)
    yours = and_(row.assignee_id == user_id, row.state.in_(UNDECIDED))
    accepted = and_(
        row.state == "accepted",
        row.until_date > window.until,
        row.until_date <= window.ahead,
        or_(row.decided_by == user_id, row.assignee_id == user_id),
    )
    return {
        "ending": accepted,
        "ended": _ended(user_id, window),
        "regressed": and_(came, row.state == "regressed"),
        "new": and_(came, row.state == "open"),
        "given": and_(yours, _happened("assigned", window)),
        "fixed": and_(row.state == "fixed", row.fixed_at > window.since, row.fixed_at <= window.until),
        _STANDING: yours,
    }


def _happened(kind: str, window: Window) -> ColumnElement[bool]:
    event = TriageEventRow
    return (
        select(event.id)
        .where(
            event.finding_id == ProjectFindingRow.id,
            event.kind == kind,
            event.at > window.since,
            event.at <= window.until,
        )
        .exists()
    )


def _ended(user_id: str, window: Window) -> ColumnElement[bool]:
    """Whose acceptance has ended, if the user made it or has the finding. What ended it has wiped off who made it: the
    history knows.
    """
    row, ended, made, later = (
        ProjectFindingRow,
        aliased(TriageEventRow),
        aliased(TriageEventRow),
        aliased(TriageEventRow),
    )
    tokens = select(ApiTokenRow.id).where(ApiTokenRow.user_id == user_id)
    last = (
        select(func.max(later.id))
        .where(later.finding_id == ended.finding_id, later.kind == "accepted", later.id < ended.id)
        .correlate(ended)
        .scalar_subquery()
    )
    mine = (
        select(made.id)
        .where(made.id == last, or_(made.actor_id == user_id, made.actor_id.in_(tokens)))
        .correlate(ended)
        .exists()
    )
    over = (
        select(ended.id)
        .where(
            ended.finding_id == row.id,
            ended.kind == "expired",
            ended.at > window.since,
            ended.at <= window.until,
            or_(mine, row.assignee_id == user_id),
        )
        .correlate(row)
        .exists()
    )
    return and_(row.state.in_((*UNDECIDED, "fixed")), over)


def _of_project(session: Session, project_id: str, name: str, kinds: dict[str, ColumnElement[bool]]) -> ProjectNews:
    row = ProjectFindingRow
    here = row.project_id == project_id
    counts = {
        kind: session.scalar(select(func.count()).select_from(row).where(here, condition)) or 0
        for kind, condition in kinds.items()
    }
    told = {kind: count for kind, count in counts.items() if count}
    groups = []
    for (kind, count), share in zip(told.items(), shares(tuple(told.values()), MOST_FINDINGS), strict=True):
        found = session.scalars(
            select(row).where(here, kinds[kind]).order_by(row.severity_rank, row.id.desc()).limit(share)
        )
        groups.append(Group(kind, count, tuple(_named(one) for one in found)))
    return ProjectNews(project_id, name, tuple(groups))


def _named(row: ProjectFindingRow) -> NamedFinding:
    return NamedFinding(
        fingerprint=row.fingerprint,
        rule=row.rule,
        name=row.name,
        severity=row.severity,
        path=row.path,
        line=row.line,
        until=row.until_date,
    )


# ---------------------------------------------------------------------------------------------- the outbox


def due_mails(session: Session, now: datetime, limit: int) -> Sequence[DigestMailRow]:
    """Up to `limit` mails whose time has come, the longest due first."""
    return session.scalars(
        select(DigestMailRow).where(DigestMailRow.due_at <= now).order_by(DigestMailRow.due_at).limit(limit)
    ).all()


def take_mail(session: Session, mail: DigestMailRow, until: datetime) -> bool:
    """Count an attempt and keep others from it until then; False if somebody else was quicker."""
    taken = session.scalar(
        update(DigestMailRow)
        .where(DigestMailRow.id == mail.id, DigestMailRow.due_at == mail.due_at)
        .values(due_at=until, attempts=DigestMailRow.attempts + 1)
        .returning(DigestMailRow.id)
        .execution_options(synchronize_session=False)
    )
    return taken is not None
