"""Queries over snapshots. This module must not touch the store of files."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.database.base import utc_now
from services.snapshots.models import SnapshotRow


def record_snapshot(session: Session, *, digest: str, files: int, lines: int) -> None:
    """Note that the store has this snapshot.

    One that is known is as young as a new one from now on, and stays as it is until the transaction ends: so nobody
    drops it between its being stored and its being referred to (`services.retention`).
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(SnapshotRow)
        .values(digest=digest, files=files, lines=lines, created_at=utc_now())
        .on_conflict_do_update(index_elements=[SnapshotRow.digest], set_={"created_at": utc_now()})
    )


def find_snapshot(session: Session, digest: str) -> SnapshotRow | None:
    """The row of one snapshot."""
    return session.get(SnapshotRow, digest)
