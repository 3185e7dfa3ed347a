"""The tables of targets and of check results."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class TargetRow(Base):
    """A thing that can be run, found by reading; how it was built and called, or why it was not run.

    `declared` is what the repository's own configuration says about it, `mined` how its own examples call it.
    `position` is its place in the report, `turn` that in the order of running. `harness` and `not_run_*` are the
    probe's.
    """

    __tablename__ = "targets"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"))
    position: Mapped[int]
    name: Mapped[str]
    kind: Mapped[str]
    path: Mapped[str]
    line: Mapped[int]
    end_line: Mapped[int]
    import_root: Mapped[str]
    module: Mapped[str]
    qualname: Mapped[str]
    declared: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    hypotheses: Mapped[list[dict[str, object]]] = mapped_column(JsonColumn, default=list)
    mined: Mapped[list[dict[str, object]]] = mapped_column(JsonColumn, default=list)
    turn: Mapped[int] = mapped_column(default=0)
    harness: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    content_key: Mapped[str | None]
    reused: Mapped[bool] = mapped_column(default=False)
    not_run_reason: Mapped[str | None]
    not_run_detail: Mapped[str | None]

    __table_args__ = (UniqueConstraint("analysis_id", "position"),)


class CheckResultRow(Base):
    """What one check of one job said. The unique key makes a second result for the same check impossible."""

    __tablename__ = "check_results"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"), index=True)
    target_id: Mapped[str] = mapped_column(ForeignKey("targets.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    check_name: Mapped[str]
    verdict: Mapped[str]
    device: Mapped[str]
    summary: Mapped[str]
    diagnosis: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    path: Mapped[str | None]
    line: Mapped[int | None]
    evidence: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)
    repro: Mapped[str | None]
    duration_s: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __table_args__ = (
        UniqueConstraint("job_id", "check_name"),
        CheckConstraint("verdict IN ('pass', 'fail', 'inconclusive', 'skipped', 'error')", name="verdict_is_known"),
    )
