"""All queries over jobs, workers and leases.

Each transition of a job is one conditional UPDATE whose row count says whether it happened: two workers, or a worker
and the reconciler, can't both win. Whoever locks more than one row takes the analysis first and its jobs after, so that
no two transactions wait for each other. This module must not know what a job does, and never commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, CursorResult, Select, and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from services.analyses.models import OPEN_STATUSES, AnalysisRow, AnalysisStatus
from services.database.base import FromNow, utc_now
from services.jobs.errors import LeaseLostError
from services.jobs.model import (
    ABSENT_CLASS,
    CPU_QUEUE,
    NO_DEVICE,
    Claim,
    DeviceState,
    HeldDevice,
    QueueDepth,
    WorkerDevice,
    needs_a_device,
)
from services.jobs.models import OPEN_STATES, OWNED_STATES, JobKind, JobRow, JobState, LeaseRow, WorkerRow


def _row_count(session: Session, statement: object) -> int:
    result = session.execute(statement)  # type: ignore[call-overload]
    assert isinstance(result, CursorResult)
    return result.rowcount


def lock_analysis(session: Session, analysis_id: str) -> AnalysisRow | None:
    """The analysis, held until the transaction ends.

    The lock leaves room for rows that refer to the analysis (results that stream in), and is nothing on SQLite, where
    a writing transaction is alone anyway.
    """
    return session.scalar(
        select(AnalysisRow)
        .where(AnalysisRow.id == analysis_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


# ---------------------------------------------------------------------------------------------- claiming


def next_analysis(session: Session, queue: str) -> str | None:
    """The analysis to serve next in `queue`: the one with the least work under way, then the oldest.

    So one submission with a thousand targets can't keep the others waiting.
    """
    busy = aliased(JobRow)
    under_way = (
        select(func.count())
        .where(busy.analysis_id == JobRow.analysis_id, busy.state.in_(OWNED_STATES))
        .correlate(JobRow)
        .scalar_subquery()
    )
    return session.scalar(
        select(JobRow.analysis_id)
        .where(JobRow.queue == queue, JobRow.state == JobState.QUEUED)
        .group_by(JobRow.analysis_id)
        .order_by(under_way, func.min(JobRow.id))
        .limit(1)
    )


def claim(
    session: Session, *, analysis_id: str, queue: str, owner: str, lease: timedelta, batch: int
) -> tuple[Claim, ...]:
    """Take up to `batch` queued probe jobs of one device class, or one job of another kind, in one UPDATE.

    The choice is a common table expression, because PostgreSQL may evaluate a plain subquery once for each row, and
    then takes `batch` more each time.
    """
    first = session.execute(
        select(JobRow.kind, JobRow.device_class)
        .where(JobRow.analysis_id == analysis_id, JobRow.queue == queue, JobRow.state == JobState.QUEUED)
        .order_by(JobRow.id)
        .limit(1)
    ).first()
    if first is None:
        return ()
    kind, device_class = first
    chosen = (
        select(JobRow.id)
        .where(
            JobRow.analysis_id == analysis_id,
            JobRow.queue == queue,
            JobRow.state == JobState.QUEUED,
            JobRow.kind == kind,
            JobRow.device_class == device_class,
        )
        .order_by(JobRow.id)
        .limit(batch if kind == JobKind.PROBE else 1)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    rows = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(select(chosen.c.id)), JobRow.state == JobState.QUEUED)
        .values(
            state=JobState.LEASED,
            attempt=JobRow.attempt + 1,
            owner=owner,
            lease_until=FromNow(lease),
            started_at=func.coalesce(JobRow.started_at, utc_now()),
            reason=None,
        )
        .returning(JobRow.id, JobRow.analysis_id, JobRow.target_id, JobRow.checks, JobRow.attempt)
        .execution_options(synchronize_session=False)
    ).all()
    claims = [
        Claim(
            job_id=row.id,
            analysis_id=row.analysis_id,
            kind=JobKind(kind),
            queue=queue,
            target_id=row.target_id,
            device_class=device_class,
            checks=tuple(row.checks),
            owner=owner,
            attempt=row.attempt,
        )
        for row in rows
    ]
    return tuple(sorted(claims, key=lambda item: item.job_id))


# ---------------------------------------------------------------------------------------------- owning


def _held(item: Claim) -> ColumnElement[bool]:
    return and_(
        JobRow.id == item.job_id,
        JobRow.owner == item.owner,
        JobRow.attempt == item.attempt,
        JobRow.state.in_(OWNED_STATES),
    )


def fence(session: Session, item: Claim, lease: timedelta) -> None:
    """Prove that the job is still this worker's, renew its lease and hold the row until the transaction ends.

    Raises `LeaseLostError` otherwise. Every write of a result begins with this.
    """
    held = _row_count(
        session,
        update(JobRow)
        .where(_held(item))
        .values(state=JobState.RUNNING, lease_until=FromNow(lease))
        .execution_options(synchronize_session=False),
    )
    if held != 1:
        raise LeaseLostError(f"job {item.job_id} is no longer owned by {item.owner} (attempt {item.attempt})")


def finish(session: Session, item: Claim, state: JobState, reason: str | None = None) -> None:
    """End the job in a final state. The caller holds the lock of the analysis.

    Raises `LeaseLostError` if the job is not this worker's any more.
    """
    assert state not in OPEN_STATES
    ended = _row_count(
        session,
        update(JobRow)
        .where(_held(item))
        .values(state=state, lease_until=None, finished_at=utc_now(), reason=reason)
        .execution_options(synchronize_session=False),
    )
    if ended != 1:
        raise LeaseLostError(f"job {item.job_id} is no longer owned by {item.owner} (attempt {item.attempt})")


def finish_if_held(session: Session, item: Claim, reason: str) -> bool:
    """End the job as cancelled, if it is still this worker's. The caller holds the lock of the analysis."""
    ended = _row_count(
        session,
        update(JobRow)
        .where(_held(item))
        .values(state=JobState.CANCELLED, lease_until=None, finished_at=utc_now(), reason=reason)
        .execution_options(synchronize_session=False),
    )
    return ended == 1


def give_back(session: Session, item: Claim, *, reason: str, lost: bool) -> JobState | None:
    """Queue the job again, or end it as `infra_failed` when `lost` and no attempt is left.

    `lost=False` is an orderly return that costs no attempt. Returns the new state, or None if the job was no longer
    this worker's. The caller holds the lock of the analysis.
    """
    return _requeue(session, _held(item), reason=reason, lost=lost)


def _requeue(session: Session, condition: ColumnElement[bool], *, reason: str, lost: bool) -> JobState | None:
    losses = JobRow.losses + (1 if lost else 0)
    if lost:
        ended = _row_count(
            session,
            update(JobRow)
            .where(condition, losses >= JobRow.max_attempts)
            .values(state=JobState.INFRA_FAILED, losses=losses, lease_until=None, finished_at=utc_now(), reason=reason)
            .execution_options(synchronize_session=False),
        )
        if ended == 1:
            return JobState.INFRA_FAILED
    queued = _row_count(
        session,
        update(JobRow)
        .where(condition)
        .values(state=JobState.QUEUED, losses=losses, owner=None, lease_until=None, rung_at=utc_now(), reason=reason)
        .execution_options(synchronize_session=False),
    )
    return JobState.QUEUED if queued == 1 else None


def renew(session: Session, items: Iterable[Claim], lease: timedelta) -> frozenset[str]:
    """Renew the leases of many jobs of one owner in one UPDATE; returns the ids that are still owned."""
    claims = list(items)
    if not claims:
        return frozenset()
    kept = session.scalars(
        update(JobRow)
        .where(JobRow.id.in_(_locked_in_order(or_(*(_held(item) for item in claims)))))
        .values(lease_until=FromNow(lease))
        .returning(JobRow.id)
        .execution_options(synchronize_session=False)
    )
    return frozenset(kept)


def _locked_in_order(*conditions: ColumnElement[bool]) -> Select[tuple[str]]:
    """The ids of the jobs that meet the conditions, locked one after the other in the order of their ids.

    Statements that change many jobs without the lock of their analysis, or with it, meet in that order: none of two
    can hold what the other waits for. Whoever waited sees the row as it is then, conditions included.
    """
    locked = select(JobRow.id).where(*conditions).order_by(JobRow.id).with_for_update().cte("locked")
    return select(locked.c.id)


# ---------------------------------------------------------------------------------------------- oversight


def expired(session: Session, limit: int = 500) -> Sequence[tuple[str, str]]:
    """(analysis id, job id) of jobs whose lease ran out: their worker is dead or cut off."""
    rows = session.execute(
        select(JobRow.analysis_id, JobRow.id)
        .where(JobRow.state.in_(OWNED_STATES), JobRow.lease_until < FromNow())
        .order_by(JobRow.analysis_id, JobRow.id)
        .limit(limit)
    )
    return [(analysis_id, job_id) for analysis_id, job_id in rows]


def reclaim(session: Session, job_id: str, *, reason: str) -> JobState | None:
    """Take an expired job away from its owner; None if it was renewed or ended in the meantime."""
    condition = and_(JobRow.id == job_id, JobRow.state.in_(OWNED_STATES), JobRow.lease_until < FromNow())
    return _requeue(session, condition, reason=reason, lost=True)


def cancel_open(session: Session, analysis_id: str, state: JobState, reason: str) -> int:
    """End all open jobs of an analysis as `cancelled` or `superseded`; returns how many there were."""
    return _row_count(
        session,
        update(JobRow)
        .where(JobRow.id.in_(_locked_in_order(JobRow.analysis_id == analysis_id, JobRow.state.in_(OPEN_STATES))))
        .values(state=state, lease_until=None, finished_at=utc_now(), reason=reason)
        .execution_options(synchronize_session=False),
    )


def cancel_waiting(session: Session, analysis_id: str, kind: JobKind, reason: str) -> Sequence[str]:
    """End the jobs of this kind that nobody has begun; returns their ids. The caller holds the lock of the analysis."""
    waiting = (JobRow.analysis_id == analysis_id, JobRow.kind == kind, JobRow.state == JobState.QUEUED)
    return session.scalars(
        update(JobRow)
        .where(JobRow.id.in_(_locked_in_order(*waiting)))
        .values(state=JobState.CANCELLED, lease_until=None, finished_at=utc_now(), reason=reason)
        .returning(JobRow.id)
        .execution_options(synchronize_session=False)
    ).all()


def jobs_with(session: Session, analysis_id: str, job_ids: Collection[str]) -> Sequence[JobRow]:
    """The jobs of an analysis that have these ids."""
    wanted = frozenset(job_ids)
    return [row for row in jobs_of(session, analysis_id) if row.id in wanted]


def unheard_queues(session: Session, patience: timedelta) -> Sequence[str]:
    """The queues with work that was rung for longer than `patience` ago, or never; marks that work as rung now."""
    waiting = and_(JobRow.state == JobState.QUEUED, or_(JobRow.rung_at.is_(None), JobRow.rung_at < FromNow(-patience)))
    queues = session.scalars(select(JobRow.queue).where(waiting).distinct().order_by(JobRow.queue)).all()
    if queues:
        session.execute(
            update(JobRow)
            .where(JobRow.id.in_(_locked_in_order(waiting)))
            .values(rung_at=FromNow())
            .execution_options(synchronize_session=False)
        )
    return queues


def unserved_queues(session: Session, age: timedelta) -> Sequence[str]:
    """The queues with waiting work that needs a device, for which no worker heard of within `age` has one that serves.

    A worker that runs a job serves, however long its queue is.
    """
    waiting = session.scalars(select(JobRow.queue).where(JobRow.state == JobState.QUEUED).distinct()).all()
    served = {
        queue for held in devices(session, age) if held.device.state is DeviceState.SERVING for queue in held.queues
    }
    return sorted(queue for queue in waiting if needs_a_device(queue) and queue not in served)


def analyses_waiting(session: Session, queue: str, limit: int = 100) -> Sequence[str]:
    """The analyses with waiting work in this queue."""
    waiting = (JobRow.queue == queue, JobRow.state == JobState.QUEUED)
    return session.scalars(
        select(JobRow.analysis_id).where(*waiting).distinct().order_by(JobRow.analysis_id).limit(limit)
    ).all()


def run_without_device(session: Session, analysis_id: str, queue: str) -> int:
    """Hand what an analysis has waiting in this queue to the workers without a device; returns how many jobs.

    What they bring is nobody's to reuse: another time there may be a device. The caller holds the analysis.
    """
    waiting = (JobRow.analysis_id == analysis_id, JobRow.queue == queue, JobRow.state == JobState.QUEUED)
    moved = session.scalars(
        update(JobRow)
        .where(JobRow.id.in_(_locked_in_order(*waiting)))
        .values(
            queue=CPU_QUEUE,
            device_class=ABSENT_CLASS,
            reuse_key=None,
            rung_at=utc_now(),
            reason=f"{NO_DEVICE} served {queue}",
        )
        .returning(JobRow.id)
        .execution_options(synchronize_session=False)
    )
    return len(moved.all())


def unsettled(session: Session, limit: int = 100) -> Sequence[str]:
    """Open analyses that have jobs and whose jobs have all ended, the oldest first.

    Those that wait for their base to end are left out: a hundred of them would keep all others from being seen.
    """
    has_job = select(JobRow.id).where(JobRow.analysis_id == AnalysisRow.id).exists()
    has_open = select(JobRow.id).where(JobRow.analysis_id == AnalysisRow.id, JobRow.state.in_(OPEN_STATES)).exists()
    base = aliased(AnalysisRow)
    waits = select(base.id).where(base.id == AnalysisRow.base_id, base.status.in_(OPEN_STATUSES)).exists()
    return session.scalars(
        select(AnalysisRow.id)
        .where(AnalysisRow.status.in_(OPEN_STATUSES), has_job, ~has_open, ~waits)
        .order_by(AnalysisRow.id)
        .limit(limit)
    ).all()


def has_open_jobs(session: Session, analysis_id: str) -> bool:
    """Whether a job of the analysis has not ended. Asked at every end of a job, so none but the first is looked at."""
    still_open = (JobRow.analysis_id == analysis_id, JobRow.state.in_(OPEN_STATES))
    return session.scalar(select(JobRow.id).where(*still_open).limit(1)) is not None


def jobs_of(session: Session, analysis_id: str) -> Sequence[JobRow]:
    """All jobs of an analysis, in the order of their creation."""
    statement = select(JobRow).where(JobRow.analysis_id == analysis_id).order_by(JobRow.id)
    # Transitions are plain UPDATEs: rows that this session has seen before may be stale.
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def counts(session: Session, analysis_id: str) -> dict[tuple[str, str], int]:
    """How many jobs of the analysis there are by (kind, state)."""
    rows = session.execute(
        select(JobRow.kind, JobRow.state, func.count())
        .where(JobRow.analysis_id == analysis_id)
        .group_by(JobRow.kind, JobRow.state)
    )
    return {(kind, state): number for kind, state, number in rows}


def mark_started(session: Session, analysis_id: str) -> None:
    """The analysis is running from now on; nothing happens if it was already, or has ended."""
    session.execute(
        update(AnalysisRow)
        .where(AnalysisRow.id == analysis_id, AnalysisRow.status == AnalysisStatus.QUEUED)
        .values(status=AnalysisStatus.RUNNING, started_at=utc_now())
        .execution_options(synchronize_session=False)
    )


def depths(session: Session) -> tuple[QueueDepth, ...]:
    """Every queue that has open work, with how much and how old."""
    rows = session.execute(
        select(JobRow.queue, JobRow.state, func.count(), func.min(JobRow.created_at))
        .where(JobRow.state.in_(OPEN_STATES))
        .group_by(JobRow.queue, JobRow.state)
    ).all()
    now = utc_now()
    queues = sorted({row[0] for row in rows})
    result = []
    for queue in queues:
        waiting = sum(number for name, state, number, _ in rows if name == queue and state == JobState.QUEUED)
        running = sum(number for name, state, number, _ in rows if name == queue and state != JobState.QUEUED)
        since = [oldest for name, state, _, oldest in rows if name == queue and state == JobState.QUEUED]
        oldest_s = max(0.0, (now - since[0]).total_seconds()) if since else None
        result.append(QueueDepth(queue=queue, waiting=waiting, running=running, oldest_s=oldest_s))
    return tuple(result)


def totals(session: Session) -> dict[tuple[str, str], int]:
    """How many jobs there are in the database by (kind, state)."""
    rows = session.execute(select(JobRow.kind, JobRow.state, func.count()).group_by(JobRow.kind, JobRow.state))
    return {(kind, state): number for kind, state, number in rows}


# ---------------------------------------------------------------------------------------------- workers, leases


def report_worker(session: Session, row: dict[str, object]) -> None:
    """Write down that a worker lives; `row` holds the columns of `WorkerRow` but `seen_at`."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = {**row, "seen_at": FromNow()}
    fresh = {key: value for key, value in values.items() if key not in {"id", "started_at"}}
    session.execute(insert(WorkerRow).values(**values).on_conflict_do_update(index_elements=["id"], set_=fresh))


def forget_worker(session: Session, worker_id: str) -> None:
    """A worker said goodbye."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def forget_silent_workers(session: Session, age: timedelta) -> None:
    """Remove workers that were not heard of for longer than `age`."""
    session.execute(delete(WorkerRow).where(WorkerRow.seen_at < FromNow(-age)))


def live_workers(session: Session, age: timedelta) -> Sequence[WorkerRow]:
    """The workers heard of within `age`, the longest-lived first."""
    return session.scalars(
        select(WorkerRow).where(WorkerRow.seen_at >= FromNow(-age)).order_by(WorkerRow.started_at)
    ).all()


def devices(session: Session, age: timedelta) -> tuple[HeldDevice, ...]:
    """The GPUs of the workers heard of within `age`, and the workers that would like one."""
    return tuple(
        HeldDevice(
            device=WorkerDevice(
                row.device["id"], row.device["name"], DeviceState(str(row.device["state"])), row.device["detail"] or ""
            ),
            worker=row.id,
            host=row.host,
            pid=row.pid,
            queues=tuple(queue for queue in row.queues if needs_a_device(queue)),
            running=row.running,
        )
        for row in live_workers(session, age)
        if row.device is not None
    )


def take_lease(session: Session, name: str, holder: str, duration: timedelta) -> bool:
    """Take or renew a named lease; False if somebody else holds it. One statement: two can't both get it."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = (
        insert(LeaseRow)
        .values(name=name, holder=holder, until=FromNow(duration))
        .on_conflict_do_update(
            index_elements=["name"],
            set_={"holder": holder, "until": FromNow(duration)},
            where=or_(LeaseRow.holder == holder, LeaseRow.until < FromNow()),
        )
        .returning(LeaseRow.holder)
    )
    return session.scalar(statement) == holder


def drop_lease(session: Session, name: str, holder: str) -> None:
    """Give a named lease up, if this holder has it."""
    session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))
