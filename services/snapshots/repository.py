"""Queries over snapshots. This module must not touch the store of files."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.database.base import utc_now
from services.snapshots.models import SnapshotRow


def record_snapshot(session: Session, *, digest: str, files: int, lines: int) -> None:
    """Note that the store has this snapshot; nothing happens if that is known already."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(SnapshotRow)
        .values(digest=digest, files=files, lines=lines, created_at=utc_now())
        .on_conflict_do_nothing(index_elements=[SnapshotRow.digest])
    )


def find_snapshot(session: Session, digest: str) -> SnapshotRow | None:
    """The row of one snapshot."""
    return session.get(SnapshotRow, digest)
