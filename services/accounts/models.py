"""The table of API tokens. The token itself is nowhere: only a keyed hash of it is."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now


class ApiTokenRow(Base):
    """One API token: what it may do, until when, and the last four characters by which its owner knows it."""

    __tablename__ = "api_tokens"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    kind: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    last_four: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JsonColumn)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
