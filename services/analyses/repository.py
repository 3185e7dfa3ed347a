"""Queries over analyses and idempotency keys. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, delete, false, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, belongs_to_readable
from services.analyses.models import AnalysisRow, IdempotencyKeyRow
from services.database.base import FromNow, utc_now
from services.jobs.models import JobKind, JobRow
from services.snapshots.model import Snapshot
from services.snapshots.repository import record_snapshot


def find(session: Session, analysis_id: str) -> AnalysisRow | None:
    """The row of one analysis."""
    return session.get(AnalysisRow, analysis_id)


def note_snapshot(session: Session, row: AnalysisRow, snapshot: Snapshot) -> None:
    """Note what the source of an analysis holds, at which commit, and who wrote that. The store has the files."""
    record_snapshot(session, digest=snapshot.digest, files=snapshot.files, lines=snapshot.lines, owners=snapshot.owners)
    author = snapshot.source.author
    row.snapshot_digest = snapshot.digest
    row.source_commit = snapshot.source.commit
    row.source_author = None if author is None else author.name
    row.source_author_email = None if author is None else author.email


def visible(subject: Subject, permission: Permission = Permission.READ) -> ColumnElement[bool]:
    """The condition that `subject` has `permission` for an analysis: by its project or, of one that belongs to no
    project, as whoever asked for it.
    """
    if permission not in subject.permissions:
        return false()
    if subject.analysis_id is not None:
        return AnalysisRow.id == subject.analysis_id
    own = and_(AnalysisRow.project_id.is_(None), AnalysisRow.submitted_by == subject.owner)
    return or_(belongs_to_readable(AnalysisRow.project_id, subject, permission), own)


def find_visible(
    session: Session, subject: Subject, analysis_id: str, permission: Permission = Permission.READ
) -> AnalysisRow | None:
    """The row of one analysis, if `subject` has `permission` for it."""
    return session.scalars(
        select(AnalysisRow).where(AnalysisRow.id == analysis_id, visible(subject, permission))
    ).one_or_none()


def newest(
    session: Session,
    subject: Subject,
    *,
    limit: int,
    before: str | None = None,
    project_id: str | None = None,
    statuses: Collection[str] = (),
) -> Sequence[AnalysisRow]:
    """Up to `limit` analyses that `subject` may see, older than the cursor `before`, the newest first."""
    statement = select(AnalysisRow).where(visible(subject)).order_by(AnalysisRow.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(AnalysisRow.id < before)
    if project_id is not None:
        statement = statement.where(AnalysisRow.project_id == project_id)
    if statuses:
        statement = statement.where(AnalysisRow.status.in_(statuses))
    return session.scalars(statement).all()


def statuses_of_newer(session: Session, row: AnalysisRow) -> frozenset[str]:
    """The statuses of what was submitted to the same project after this, for the same purpose."""
    newer = select(AnalysisRow.status).where(
        AnalysisRow.project_id == row.project_id, AnalysisRow.purpose == row.purpose, AnalysisRow.id > row.id
    )
    return frozenset(session.scalars(newer.distinct()))


def totals(session: Session) -> dict[str, int]:
    """How many analyses there are by status."""
    rows = session.execute(select(AnalysisRow.status, func.count()).group_by(AnalysisRow.status))
    return dict(rows.all())


def jobs_by_state(session: Session, analysis_ids: Collection[str]) -> Sequence[tuple[str, str, str, str, int]]:
    """(analysis, kind, device class, state, how many) of the probe and example jobs of some analyses."""
    group = (JobRow.analysis_id, JobRow.kind, JobRow.device_class, JobRow.state)
    rows = session.execute(
        select(*group, func.count(JobRow.id))
        .where(JobRow.analysis_id.in_(analysis_ids), JobRow.kind.in_((JobKind.PROBE, JobKind.EXAMPLES)))
        .group_by(*group)
    )
    return rows.all()


def checks_of_class(session: Session, analysis_id: str, device_class: str) -> int:
    """How many checks each target of an analysis has on a class of devices: they are planned for all alike."""
    planned = session.scalar(
        select(JobRow.checks)
        .where(JobRow.analysis_id == analysis_id, JobRow.kind == JobKind.PROBE, JobRow.device_class == device_class)
        .limit(1)
    )
    return len(planned or ())


def find_key(session: Session, scope: str, key: str) -> IdempotencyKeyRow | None:
    """What a key was used for."""
    return session.get(IdempotencyKeyRow, (scope, key))


def store_key(session: Session, *, scope: str, key: str, body_digest: str, analysis_id: str) -> bool:
    """Note what a key is used for; False if somebody else was quicker."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    stored = session.scalar(
        insert(IdempotencyKeyRow)
        .values(scope=scope, key=key, body_digest=body_digest, analysis_id=analysis_id, created_at=utc_now())
        .on_conflict_do_nothing(index_elements=["scope", "key"])
        .returning(IdempotencyKeyRow.key)
    )
    return stored is not None


def forget_keys(session: Session, age: timedelta) -> None:
    """Drop keys that were stored longer than `age` ago."""
    session.execute(delete(IdempotencyKeyRow).where(IdempotencyKeyRow.created_at < FromNow(-age)))
