"""Queries over snapshots. This module must not touch the store of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.database.base import utc_now
from services.snapshots.models import SnapshotRow
from services.snapshots.owners import CodeOwners, OwnerLine


def record_snapshot(session: Session, *, digest: str, files: int, lines: int, owners: Iterable[OwnerLine] = ()) -> None:
    """Note that the store has this snapshot.

    One that is known is as young as a new one from now on, and stays as it is until the transaction ends: so nobody
    drops it between its being stored and its being referred to (`services.retention`).
    """
    again: dict[str, object] = {"created_at": utc_now()}
    stored = [asdict(line) | {"owners": list(line.owners)} for line in owners]
    if stored:  # who runs an analysis again has not read the files again
        again["owners"] = stored
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(SnapshotRow)
        .values(digest=digest, files=files, lines=lines, owners=stored, created_at=utc_now())
        .on_conflict_do_update(index_elements=[SnapshotRow.digest], set_=again)
    )


def find_snapshot(session: Session, digest: str) -> SnapshotRow | None:
    """The row of one snapshot."""
    return session.get(SnapshotRow, digest)


def code_owners(session: Session, digest: str) -> CodeOwners:
    """Who looks after the files of a snapshot; nobody if there is no such snapshot any more."""
    stored = session.scalars(select(SnapshotRow.owners).where(SnapshotRow.digest == digest)).first()
    return CodeOwners(
        [OwnerLine(int(str(line["section"])), str(line["pattern"]), _texts(line["owners"])) for line in stored or []]
    )


def _texts(stored: object) -> tuple[str, ...]:
    assert isinstance(stored, list)
    return tuple(map(str, stored))
