"""The tables of digests: who wants one how often, and the mails that wait to be sent."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class DigestRow(Base):
    """Somebody's choice; who has none wants no mail. What happened up to `told_until` has been told."""

    __tablename__ = "digests"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    period: Mapped[str]
    told_until: Mapped[datetime] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)

    __table_args__ = (CheckConstraint("period IN ('daily', 'weekly')", name="period_is_known"),)


class DigestMailRow(Base):
    """One mail, tried until it was taken or given up. `due_at` is null once it is over.

    `content` is kept by project (`services.digests.model.Digest`): what its receiver may not read any more when it is
    sent is left out.
    """

    __tablename__ = "digest_mails"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    content: Mapped[dict[str, object]] = mapped_column(JsonColumn)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    status: Mapped[int | None]
    reason: Mapped[str | None]
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
