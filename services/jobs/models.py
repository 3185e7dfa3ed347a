"""The tables of jobs, of workers, and of named leases."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class JobKind(StrEnum):
    """What a job does: fetch a git source, read a snapshot, run its own examples, or one target on one device class."""

    INGEST = "ingest"
    STATIC = "static"
    EXAMPLES = "examples"
    PROBE = "probe"


class JobState(StrEnum):
    """Where a job stands.

    `crashed` and `timed_out` are results of the submitted code and are never repeated; `infra_failed` says that
    Gradproof's own parts failed `max_attempts` times.
    """

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    INFRA_FAILED = "infra_failed"


OWNED_STATES = (JobState.LEASED, JobState.RUNNING)
OPEN_STATES = (JobState.QUEUED, *OWNED_STATES)


class JobRow(Base):
    """One piece of work.

    `attempt` counts claims and, together with `owner`, is the fencing token: a write is accepted from the present
    pair only. `losses` counts the attempts that were lost with their worker; work that a worker gave back in an
    orderly way is not lost. `rung_at` is when a doorbell was last rung for it.
    """

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"))
    target_id: Mapped[str | None] = mapped_column(ForeignKey("targets.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    queue: Mapped[str]
    device_class: Mapped[str] = mapped_column(default="")
    checks: Mapped[list[str]] = mapped_column(JsonColumn, default=list)
    idempotency_key: Mapped[str] = mapped_column(unique=True)
    reuse_key: Mapped[str | None] = mapped_column(index=True)
    state: Mapped[str] = mapped_column(default=JobState.QUEUED)
    attempt: Mapped[int] = mapped_column(default=0)
    losses: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int]
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    rung_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    reason: Mapped[str | None]

    __table_args__ = (
        CheckConstraint("kind IN ('ingest', 'static', 'examples', 'probe')", name="kind_is_known"),
        CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'succeeded', 'failed', 'crashed', 'timed_out', 'cancelled',"
            " 'superseded', 'infra_failed')",
            name="state_is_known",
        ),
        CheckConstraint(
            "(state IN ('leased', 'running')) = (lease_until IS NOT NULL)", name="lease_belongs_to_owned_states"
        ),
        Index(None, "queue", "state"),
        Index(None, "analysis_id", "state"),
        Index(None, "state", "lease_until"),
    )


class WorkerRow(Base):
    """A worker process that reports itself alive. `device` is its GPU (`WorkerDevice`), None where it needs none."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    version: Mapped[str]
    queues: Mapped[list[str]] = mapped_column(JsonColumn)
    devices: Mapped[list[str]] = mapped_column(JsonColumn, default=list)
    device: Mapped[dict[str, str | None] | None] = mapped_column(JsonColumn)
    running: Mapped[int] = mapped_column(default=0)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class LeaseRow(Base):
    """A named right that one holder has at a time, until it runs out: that of being the reconciler, for one."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[datetime] = mapped_column(UtcDateTime)
