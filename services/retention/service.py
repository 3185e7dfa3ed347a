"""Drops what is no longer kept, in rounds that hold nobody up: one analysis a transaction, a bounded number a round.

A snapshot goes in two steps, its row first and its files once no row speaks of them. Between the moment that a
submission has stored files and the moment that its analysis is in the database neither step may take them away:
storing makes files and row young again (`SnapshotStore.put`, `record_snapshot`), and only what was not stored for
`UNUSED_FOR` goes. The same sweep takes files that never got a row, because their job was cancelled or its worker died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog

from services.database import Database
from services.retention import leftovers, repository
from services.retention.model import Dropped, Keep
from services.settings import Settings
from services.snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

# Between storing files and committing their analysis lie seconds, or a minute where the database is away.
UNUSED_FOR: Final = timedelta(hours=1)
# Dropping one analysis of 1,000 targets and 10,000 results takes 0.25 s on SQLite.
ANALYSES_A_ROUND: Final = 20
ROWS_A_ROUND: Final = 1_000
_FILES_AT_ONCE: Final = 500


def would_prune(settings: Settings, keep: Keep) -> Dropped:
    """What `prune` would drop."""
    with _opened(settings) as retention:
        return retention.preview(keep)


def prune(settings: Settings, keep: Keep) -> Dropped:
    """Drop all that need not be kept, round after round; returns how much that was."""
    analyses = snapshots = 0
    over: Counter[str] = Counter()
    with _opened(settings) as retention:
        while True:
            dropped = retention.drop(keep)
            analyses += dropped.analyses
            snapshots += dropped.snapshots
            over.update(dropped.leftovers)
            if not dropped.more:
                return Dropped(analyses, snapshots, dict(over))


@contextmanager
def _opened(settings: Settings) -> Iterator[RetentionService]:
    database = Database.open(settings, ring=lambda _queue: None)
    try:
        yield RetentionService(database, SnapshotStore(settings.snapshot_dir))
    finally:
        database.close()


class RetentionService:
    """Everything about what is dropped."""

    def __init__(self, database: Database, store: SnapshotStore, *, unused_for: timedelta = UNUSED_FOR) -> None:
        self._database = database
        self._store = store
        self._unused_for = unused_for

    def preview(self, keep: Keep) -> Dropped:
        """How many analyses would be dropped, and how many snapshots nothing would refer to then."""
        with self._database.reading() as session:
            return Dropped(
                analyses=repository.count_droppable(session, keep), snapshots=repository.count_freed(session, keep)
            )

    def drop(self, keep: Keep) -> Dropped:
        """One round."""
        with self._database.reading() as session:
            chosen = repository.droppable(session, keep, limit=ANALYSES_A_ROUND)
        analyses = sum(self._drop_analysis(analysis_id) for analysis_id in chosen)
        with self._database.unit_of_work() as uow:
            rows = repository.forget_snapshots(uow.session, self._unused_for, limit=ROWS_A_ROUND)
        snapshots = self._drop_files()
        over = {}
        for leftover in leftovers.LEFTOVERS:
            with self._database.unit_of_work() as uow:
                over[leftover.name] = leftovers.forget(uow.session, leftover, limit=ROWS_A_ROUND)
        more = len(chosen) == ANALYSES_A_ROUND or ROWS_A_ROUND in {rows, snapshots, *over.values()}
        dropped = Dropped(analyses, snapshots, {name: number for name, number in over.items() if number}, more)
        if dropped != Dropped():
            log.info("dropped", analyses=analyses, snapshots=snapshots, **dropped.leftovers)
        return dropped

    def _drop_analysis(self, analysis_id: str) -> bool:
        with self._database.unit_of_work() as uow:
            return repository.drop_analysis(uow.session, analysis_id)

    def _drop_files(self) -> int:
        """The files of snapshots that no row speaks of, up to `ROWS_A_ROUND`; how many snapshots."""
        dropped = 0
        stored = self._store.digests()
        for start in range(0, len(stored), _FILES_AT_ONCE):
            digests = stored[start : start + _FILES_AT_ONCE]
            with self._database.reading() as session:
                known = repository.known_snapshots(session, digests)
            for digest in digests:
                if digest not in known:
                    dropped += self._store.discard(digest, unused_for=self._unused_for)
                if dropped == ROWS_A_ROUND:
                    return dropped
        return dropped
