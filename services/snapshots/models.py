"""The table of snapshots: what is in the content-addressed store, without where it came from.

The same content can come from several sources; each analysis says where its own came from.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base
from services.database.base import JsonColumn, UtcDateTime, utc_now


class SnapshotRow(Base):
    """A snapshot: `digest` is `sha256:` and 64 hexadecimal digits. `created_at` is when it was last stored. `owners`
    are the lines of its file of code owners.
    """

    __tablename__ = "snapshots"

    digest: Mapped[str] = mapped_column(primary_key=True)
    files: Mapped[int]
    lines: Mapped[int]
    # Asked for by name only: 2,000 lines of it would come with every list otherwise.
    owners: Mapped[list[dict[str, object]]] = mapped_column(
        JsonColumn, default=list, server_default="[]", deferred=True
    )
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
