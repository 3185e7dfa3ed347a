"""The queries of what is to be done towards forges: webhooks as they came in, and tasks. Never commits.

Transitions of a task are conditional UPDATEs, as those of jobs are: two workers can't both win, and who has lost its
lease writes nothing. Tasks of one installation are done one at a time, which the lock on its row makes sure of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, CursorResult, and_, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from services.database import new_id
from services.database.base import FromNow, utc_now
from services.forges.models import (
    DeliveryRow,
    ForgeTaskRow,
    InstallationRow,
)
from services.jobs.errors import LeaseLostError

# How many due tasks are looked at for one that may be begun: of one installation, all but one wait.
_LOOKED_AT: Final = 50


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A claimed task. `owner` and `attempt` together are the fencing token that every write has to show.

    `failures` counts the tries before this one that came to nothing.
    """

    task_id: str
    kind: str
    installation_id: str | None
    pull_request_id: str | None
    delivery_id: str | None
    details: Mapping[str, object]
    owner: str
    attempt: int

    @property
    def failures(self) -> int:
        """How many tries before this one failed."""
        value = self.details.get("failures", 0)
        return value if isinstance(value, int) else 0


def _row_count(session: Session, statement: object) -> int:
    result = session.execute(statement)  # type: ignore[call-overload]
    assert isinstance(result, CursorResult)
    return result.rowcount


# ---------------------------------------------------------------------------------------------- deliveries


def record_delivery(session: Session, *, forge: str, delivery_id: str, event: str, action: str, payload: object) -> str:
    """Write a webhook down; an empty text if it is known already."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    created = session.scalar(
        insert(DeliveryRow)
        .values(
            id=new_id(),
            forge=forge,
            delivery_id=delivery_id,
            event=event,
            action=action,
            received_at=utc_now(),
            payload=payload,
            outcome="received",
            reason="",
        )
        .on_conflict_do_nothing(index_elements=["forge", "delivery_id"])
        .returning(DeliveryRow.id)
    )
    return created or ""


def delivery(session: Session, row_id: str) -> DeliveryRow | None:
    """A webhook as it was written down."""
    return session.get(DeliveryRow, row_id)


def forget_deliveries(session: Session, age: timedelta) -> int:
    """Drop webhooks that came longer than `age` ago, and what was done because of them; returns how many."""
    return _row_count(session, delete(DeliveryRow).where(DeliveryRow.received_at < FromNow(-age)))


def forget_tasks(session: Session, age: timedelta) -> int:
    """Drop tasks that have ended and were due longer than `age` ago."""
    ended = ForgeTaskRow.state.in_(("done", "failed"))
    return _row_count(session, delete(ForgeTaskRow).where(ended, ForgeTaskRow.due_at < FromNow(-age)))


# ---------------------------------------------------------------------------------------------- tasks


def _quiet() -> ColumnElement[bool]:
    """Whether the installation of a task may not be spoken for at the moment."""
    return (
        select(InstallationRow.id)
        .where(InstallationRow.id == ForgeTaskRow.installation_id, InstallationRow.quiet_until > FromNow())
        .exists()
    )


def _due() -> tuple[ColumnElement[bool], ...]:
    return ForgeTaskRow.state == "queued", ForgeTaskRow.due_at <= FromNow()


def _under_way(installation_id: str) -> ColumnElement[bool]:
    other = aliased(ForgeTaskRow)
    return select(other.id).where(other.installation_id == installation_id, other.state == "leased").exists()


def claim_task(session: Session, owner: str, lease: timedelta) -> TaskClaim | None:
    """Take the task that has waited longest of those that may be begun; None if there is none."""
    busy = select(ForgeTaskRow.installation_id).where(
        ForgeTaskRow.state == "leased", ForgeTaskRow.installation_id.is_not(None)
    )
    candidates = session.execute(
        select(ForgeTaskRow.id, ForgeTaskRow.installation_id)
        .where(
            *_due(),
            ~_quiet(),
            or_(ForgeTaskRow.installation_id.is_(None), ForgeTaskRow.installation_id.not_in(busy)),
        )
        .order_by(ForgeTaskRow.due_at, ForgeTaskRow.id)
        .limit(_LOOKED_AT)
    ).all()
    for task_id, installation_id in candidates:
        if installation_id is not None and not _lock_installation(session, installation_id):
            continue
        conditions = [ForgeTaskRow.id == task_id, *_due()]
        if installation_id is not None:
            conditions.append(~_under_way(installation_id))
        row = session.execute(
            update(ForgeTaskRow)
            .where(*conditions)
            .values(state="leased", attempt=ForgeTaskRow.attempt + 1, owner=owner, lease_until=FromNow(lease))
            .returning(
                ForgeTaskRow.id,
                ForgeTaskRow.kind,
                ForgeTaskRow.installation_id,
                ForgeTaskRow.pull_request_id,
                ForgeTaskRow.delivery_id,
                ForgeTaskRow.details,
                ForgeTaskRow.attempt,
            )
            .execution_options(synchronize_session=False)
        ).first()
        if row is not None:
            return TaskClaim(
                task_id=row.id,
                kind=row.kind,
                installation_id=row.installation_id,
                pull_request_id=row.pull_request_id,
                delivery_id=row.delivery_id,
                details=row.details,
                owner=owner,
                attempt=row.attempt,
            )
    return None


def _lock_installation(session: Session, installation_id: str) -> bool:
    """Hold the installation until the transaction ends; False if another worker is choosing a task of it just now."""
    found = session.scalar(
        select(InstallationRow.id)
        .where(InstallationRow.id == installation_id)
        .with_for_update(skip_locked=True, key_share=True)
    )
    return found is not None


def _held(item: TaskClaim) -> tuple[ColumnElement[bool], ...]:
    return (
        ForgeTaskRow.id == item.task_id,
        ForgeTaskRow.owner == item.owner,
        ForgeTaskRow.attempt == item.attempt,
        ForgeTaskRow.state == "leased",
    )


def fence_task(session: Session, item: TaskClaim, lease: timedelta) -> None:
    """Prove that the task is still this worker's, and hold its row. Raises `LeaseLostError` otherwise."""
    if not renew_tasks(session, [item], lease):
        raise LeaseLostError(f"task {item.task_id} is no longer owned by {item.owner} (attempt {item.attempt})")


def renew_tasks(session: Session, items: Collection[TaskClaim], lease: timedelta) -> frozenset[str]:
    """Renew the leases of tasks; returns the ids of those that are still owned."""
    if not items:
        return frozenset()
    kept = session.scalars(
        update(ForgeTaskRow)
        .where(or_(*(and_(*_held(item)) for item in items)))
        .values(lease_until=FromNow(lease))
        .returning(ForgeTaskRow.id)
        .execution_options(synchronize_session=False)
    )
    return frozenset(kept)


def end_task(session: Session, item: TaskClaim, state: str, reason: str | None) -> None:
    """End a task as `done` or `failed`. Raises `LeaseLostError` if it is not this worker's any more."""
    ended = _row_count(
        session,
        update(ForgeTaskRow)
        .where(*_held(item))
        .values(state=state, lease_until=None, ended_at=utc_now(), reason=reason)
        .execution_options(synchronize_session=False),
    )
    if ended != 1:
        raise LeaseLostError(f"task {item.task_id} is no longer owned by {item.owner} (attempt {item.attempt})")


def postpone_task(session: Session, item: TaskClaim, *, due: timedelta, reason: str, failed: bool) -> bool:
    """Queue a task again, `due` from now; `failed` counts. False if it was no longer this worker's."""
    details = {**item.details, "failures": item.failures + 1} if failed else dict(item.details)
    count = _row_count(
        session,
        update(ForgeTaskRow)
        .where(*_held(item))
        .values(state="queued", owner=None, lease_until=None, due_at=FromNow(due), reason=reason, details=details)
        .execution_options(synchronize_session=False),
    )
    return count == 1


def lost_tasks(session: Session, limit: int = 100) -> Sequence[TaskClaim]:
    """Tasks whose lease ran out: their worker is dead or cut off."""
    rows = session.scalars(
        select(ForgeTaskRow)
        .where(ForgeTaskRow.state == "leased", ForgeTaskRow.lease_until < FromNow())
        .order_by(ForgeTaskRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [
        TaskClaim(
            task_id=row.id,
            kind=row.kind,
            installation_id=row.installation_id,
            pull_request_id=row.pull_request_id,
            delivery_id=row.delivery_id,
            details=row.details,
            owner=row.owner or "",
            attempt=row.attempt,
        )
        for row in rows
    ]


def has_due_task(session: Session) -> bool:
    """Whether a task may be begun now, as far as rate limits allow."""
    return session.scalar(select(ForgeTaskRow.id).where(*_due(), ~_quiet()).limit(1)) is not None


def belongs_to_pull_request(session: Session, item: TaskClaim, pull_request_id: str) -> None:
    """A task is about a pull request, which was not known when it was queued."""
    session.execute(
        update(ForgeTaskRow)
        .where(*_held(item))
        .values(pull_request_id=pull_request_id)
        .execution_options(synchronize_session=False)
    )


def belongs_to_installation(session: Session, item: TaskClaim, installation_id: str) -> None:
    """A task is of an installation, which was not known when it was queued."""
    session.execute(
        update(ForgeTaskRow)
        .where(*_held(item))
        .values(installation_id=installation_id)
        .execution_options(synchronize_session=False)
    )
