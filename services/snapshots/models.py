"""The table of snapshots: what is in the content-addressed store, without where it came from.

The same content can come from several sources; each analysis says where its own came from.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base
from services.database.base import UtcDateTime, utc_now


class SnapshotRow(Base):
    """A snapshot: `digest` is `sha256:` and 64 hexadecimal digits. `created_at` is when it was last stored."""

    __tablename__ = "snapshots"

    digest: Mapped[str] = mapped_column(primary_key=True)
    files: Mapped[int]
    lines: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
