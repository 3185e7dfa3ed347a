"""The tables of forges: who installed us, which repositories, what they told us, where each pull request stands.

Keys and secrets of forges are settings of the operator, never rows.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now

_FORGE_IS_KNOWN = "forge IN ('github', 'gitlab')"


class InstallationRow(Base):
    """An account at a forge that has installed the application."""

    __tablename__ = "installations"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    forge: Mapped[str]
    external_id: Mapped[str]
    account: Mapped[str]
    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisations.id"), index=True)
    permissions: Mapped[dict[str, str]] = mapped_column(JsonColumn, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    suspended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Nothing is sent to the forge for it before then: its rate limit is used up.
    quiet_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    quiet_reason: Mapped[str | None]

    __table_args__ = (
        UniqueConstraint("forge", "external_id"),
        CheckConstraint(_FORGE_IS_KNOWN, name="forge_is_known"),
    )


class RepositoryRow(Base):
    """A repository at a forge, and the project that its analyses belong to."""

    __tablename__ = "repositories"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    forge: Mapped[str]
    external_id: Mapped[str]
    full_name: Mapped[str] = mapped_column(index=True)
    clone_url: Mapped[str]
    web_url: Mapped[str]
    is_private: Mapped[bool] = mapped_column(default=False)
    default_branch: Mapped[str]
    installation_id: Mapped[str] = mapped_column(ForeignKey("installations.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("forge", "external_id"),
        CheckConstraint(_FORGE_IS_KNOWN, name="forge_is_known"),
    )


class DeliveryRow(Base):
    """A webhook as it came in, once for each delivery id. `payload` is dropped when it has been dealt with."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    forge: Mapped[str]
    delivery_id: Mapped[str]
    event: Mapped[str]
    action: Mapped[str] = mapped_column(default="")
    received_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, index=True)
    payload: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    outcome: Mapped[str] = mapped_column(default="received")
    reason: Mapped[str] = mapped_column(default="")
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("forge", "delivery_id"),
        CheckConstraint("outcome IN ('received', 'done', 'ignored', 'failed')", name="outcome_is_known"),
    )


class PullRequestRow(Base):
    """A pull request, what its present head is, and what we have written there.

    `analysis_id` is that of `head_sha`, `base_analysis_id` that of its merge base. `check_*` and `summary_*` remember
    what the forge has, so that a retry doubles nothing: how many pages of annotations were sent, which digest the
    summary has. `summary_removed_at`: a person deleted our comment. `due_at`: when the present head is to be analysed
    (pushes are debounced). `silence` are the stated reasons for what was not written, by what it is.
    """

    __tablename__ = "pull_requests"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    repository_id: Mapped[str] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[str] = mapped_column(default="open")
    is_draft: Mapped[bool] = mapped_column(default=False)
    is_fork: Mapped[bool] = mapped_column(default=False)
    title: Mapped[str] = mapped_column(default="")
    author: Mapped[str] = mapped_column(default="")
    base_ref: Mapped[str]
    base_sha: Mapped[str]
    head_ref: Mapped[str]
    head_sha: Mapped[str] = mapped_column(index=True)
    merge_base_sha: Mapped[str | None]
    pushes: Mapped[int] = mapped_column(default=0)
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    pause_reason: Mapped[str] = mapped_column(default="")
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    analysis_id: Mapped[str | None]
    base_analysis_id: Mapped[str | None]
    check_sha: Mapped[str | None]
    check_id: Mapped[str | None]
    check_state: Mapped[str] = mapped_column(default="")
    check_digest: Mapped[str] = mapped_column(default="")
    check_pages: Mapped[int] = mapped_column(default=0)
    summary_id: Mapped[str | None]
    summary_digest: Mapped[str] = mapped_column(default="")
    summary_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    sarif_sha: Mapped[str | None]
    silence: Mapped[dict[str, str]] = mapped_column(JsonColumn, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __table_args__ = (
        UniqueConstraint("repository_id", "number"),
        CheckConstraint("state IN ('open', 'closed', 'merged')", name="state_is_known"),
        Index(None, "analysis_id"),
    )


class ReviewThreadRow(Base):
    """A comment of ours at a line of a pull request. `state`: `open`, `resolved` by us, or `kept` for a person."""

    __tablename__ = "review_threads"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    pull_request_id: Mapped[str] = mapped_column(ForeignKey("pull_requests.id", ondelete="CASCADE"), index=True)
    fingerprint: Mapped[str]
    comment_id: Mapped[str]
    thread_id: Mapped[str | None]
    path: Mapped[str]
    line: Mapped[int]
    head_sha: Mapped[str]
    state: Mapped[str] = mapped_column(default="open")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __table_args__ = (
        UniqueConstraint("pull_request_id", "comment_id"),
        CheckConstraint("state IN ('open', 'resolved', 'kept')", name="state_is_known"),
    )


class ForgeTaskRow(Base):
    """A piece of work towards a forge: dealing with a delivery, analysing a head, publishing what came of it.

    `key` makes a task that still waits unique: the same thing is not queued twice. Tasks of one installation are done
    one at a time. `attempt` and `owner` fence, as they do for jobs; `due_at` is when it may be begun.
    """

    __tablename__ = "forge_tasks"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str]
    key: Mapped[str]
    installation_id: Mapped[str | None] = mapped_column(ForeignKey("installations.id", ondelete="CASCADE"))
    pull_request_id: Mapped[str | None] = mapped_column(ForeignKey("pull_requests.id", ondelete="CASCADE"), index=True)
    delivery_id: Mapped[str | None] = mapped_column(ForeignKey("deliveries.id", ondelete="CASCADE"))
    details: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)
    state: Mapped[str] = mapped_column(default="queued")
    attempt: Mapped[int] = mapped_column(default=0)
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    reason: Mapped[str | None]

    __table_args__ = (
        CheckConstraint("kind IN ('delivery', 'analyse', 'publish')", name="kind_is_known"),
        CheckConstraint("state IN ('queued', 'leased', 'done', 'failed')", name="state_is_known"),
        Index(None, "state", "due_at"),
        Index(None, "key", "state"),
        Index(None, "installation_id", "state"),
    )
