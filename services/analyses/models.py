"""The tables of analyses and of the keys that make a repeated submission harmless."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class AnalysisStatus(StrEnum):
    """Where an analysis stands. `partial`: settled, but something of Gradproof's own kept part of it from running."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PARTIAL = "partial"


class Purpose(StrEnum):
    """What an analysis is of: the project's main line, a change that is proposed, or what a change is compared with."""

    MAIN = "main"
    PROPOSAL = "proposal"
    BASE = "base"


OPEN_STATUSES = (AnalysisStatus.QUEUED, AnalysisStatus.RUNNING)
SETTLED_STATUSES = (AnalysisStatus.FINISHED, AnalysisStatus.PARTIAL)


class AnalysisRow(Base):
    """One run over one snapshot. `snapshot_digest` is null until the source was fetched.

    `examples` are those of the repository's own examples that were run for their calls, `examples_reason` says why
    some or all were not. `submitted_by` is the id of the user or token that asked for it, or of the forge's
    installation. `source_author` and `source_author_email` are what the commit says of who wrote it. `totals` are the
    counts that lists and trends show, written when it is settled (`services.analyses.totals`).
    """

    __tablename__ = "analyses"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    base_id: Mapped[str | None] = mapped_column(ForeignKey("analyses.id", ondelete="SET NULL"), index=True)
    snapshot_digest: Mapped[str | None] = mapped_column(ForeignKey("snapshots.digest"), index=True)
    status: Mapped[str] = mapped_column(default=AnalysisStatus.QUEUED)
    reason: Mapped[str | None]
    options: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)
    configuration: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    configuration_hash: Mapped[str | None]
    source_kind: Mapped[str]
    source_url: Mapped[str | None]
    source_ref: Mapped[str | None]
    source_commit: Mapped[str | None]
    source_author: Mapped[str | None]
    source_author_email: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    static_finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    gate: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    tool: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)
    examples_key: Mapped[str | None] = mapped_column(index=True)
    examples: Mapped[list[dict[str, object]]] = mapped_column(JsonColumn, default=list)
    examples_reason: Mapped[str | None]
    purpose: Mapped[str] = mapped_column(default=Purpose.MAIN, server_default=Purpose.MAIN)
    pull_request_id: Mapped[str | None] = mapped_column(index=True)
    branch: Mapped[str | None]
    submitted_by: Mapped[str | None]
    submitted_by_name: Mapped[str | None]
    totals: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)

    __table_args__ = (
        CheckConstraint(
            "status IN ('queued', 'running', 'finished', 'failed', 'cancelled', 'partial')", name="status_is_known"
        ),
        Index(None, "status"),
        Index(None, "project_id", "purpose", "id"),
        Index(None, "submitted_by", "created_at"),
    )


class IdempotencyKeyRow(Base):
    """A key that a client sent with a submission, within its own scope, and what it sent with it."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_digest: Mapped[str]
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
