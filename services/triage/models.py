"""The tables of triage: a finding as a project knows it over all its analyses, and what happened to it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class ProjectFindingRow(Base):
    """A finding of a project by its fingerprint: its state, who decided so, and how it was last seen.

    `until_*` end an acceptance: a date, a number of further analyses that show it, or a torch version that is newer.
    `occurrences` counts the analyses that have shown it since it was accepted. `on_main`: the newest analysis of the
    main line has it; otherwise it was only seen in proposals, or is fixed. `main_since`: when it last came
    there. `severity_rank`: 0 error, 1 warning, 2 note.
    """

    __tablename__ = "project_findings"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    fingerprint: Mapped[str]
    state: Mapped[str] = mapped_column(default="open")
    reason: Mapped[str] = mapped_column(default="")
    decided_by: Mapped[str | None]
    decided_by_name: Mapped[str | None]
    decided_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    until_date: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    until_occurrences: Mapped[int | None]
    until_torch: Mapped[str | None]
    occurrences: Mapped[int] = mapped_column(default=0)
    assignee_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    assignee_name: Mapped[str | None]
    rule: Mapped[str]
    name: Mapped[str]
    severity: Mapped[str]
    severity_rank: Mapped[int]
    path: Mapped[str]
    line: Mapped[int]
    symbol: Mapped[str]
    message: Mapped[str]
    verdict: Mapped[str]
    on_main: Mapped[bool] = mapped_column(default=False)
    main_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    first_analysis_id: Mapped[str | None]
    last_analysis_id: Mapped[str | None]
    first_seen_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    last_seen_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    fixed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("project_id", "fingerprint"),
        CheckConstraint("state IN ('open', 'accepted', 'false_positive', 'fixed', 'regressed')", name="state_is_known"),
        Index(None, "project_id", "state", "severity_rank", "id"),
        Index(None, "project_id", "rule", "state"),
        # What the numbers of an inbox are counted by: they are read from the index alone.
        Index(None, "project_id", "state", "severity", "verdict", "on_main"),
        Index(None, "project_id", "last_analysis_id"),
        Index(None, "assignee_id"),
        # What has come and gone since a moment: for digests.
        Index(None, "project_id", "main_since"),
        Index(None, "project_id", "fixed_at"),
    )


class TriageEventRow(Base):
    """Something that happened to a finding of a project: a decision, a comment, an assignment, a fix, a return."""

    __tablename__ = "triage_events"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    finding_id: Mapped[str] = mapped_column(ForeignKey("project_findings.id", ondelete="CASCADE"))
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    actor_kind: Mapped[str]
    actor_id: Mapped[str]
    actor_name: Mapped[str]
    kind: Mapped[str]
    before: Mapped[str | None]
    after: Mapped[str | None]
    text: Mapped[str] = mapped_column(default="")
    details: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)

    __table_args__ = (Index(None, "finding_id", "id"), Index(None, "kind", "at"))
