"""The tables of projects: what a team watches, what it asks of it, whom it tells."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now

# The organisation of projects that nobody put anywhere else; it is there from the first migration on.
DEFAULT_ORGANISATION: Final = "default"


class ProjectRow(Base):
    """A project.

    `name` is its full name: `organisation/name`, and the bare name in the default organisation; so names of one
    organisation never collide with those of another. `settings` is what `services.projects.settings` reads.
    `baseline_id` is the newest settled analysis of the main line.
    """

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    # No foreign key: SQLite can't add a column that has both one and a default.
    organisation_id: Mapped[str] = mapped_column(default=DEFAULT_ORGANISATION, server_default=DEFAULT_ORGANISATION)
    name: Mapped[str] = mapped_column(unique=True)
    repository_url: Mapped[str | None]
    default_branch: Mapped[str | None]
    settings: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict, server_default="{}")
    baseline_id: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    archived_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (Index(None, "organisation_id", "name"),)


class HookRow(Base):
    """An address that is told when an analysis of the project has ended. Its secret is derived from its id."""

    __tablename__ = "hooks"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    url: Mapped[str]
    events: Mapped[list[str]] = mapped_column(JsonColumn)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class HookDeliveryRow(Base):
    """One call of a hook, repeated until it was taken or given up. `due_at` is null once it is over."""

    __tablename__ = "hook_deliveries"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    hook_id: Mapped[str] = mapped_column(ForeignKey("hooks.id", ondelete="CASCADE"), index=True)
    analysis_id: Mapped[str | None]
    event: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    status: Mapped[int | None]
    reason: Mapped[str | None]
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ShareLinkRow(Base):
    """A link that shows one analysis, read only, to whoever has it, until it ends."""

    __tablename__ = "share_links"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"), index=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
