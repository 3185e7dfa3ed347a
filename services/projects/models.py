"""The table of projects."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import UtcDateTime, utc_now


class ProjectRow(Base):
    """A project: what a team watches."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
