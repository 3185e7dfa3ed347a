"""The unit of work: the only place of the product that commits.

Services flush; what must happen after the commit and never without it (ringing a queue's doorbell) is buffered here
and done once the commit succeeded. A doorbell is best effort: the row that was committed is the truth, and the
reconciler rings again for whatever nobody claimed. This module must not know what a doorbell is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from services.database.engine import READ_ONLY, build_engine
from services.settings import Settings

log = structlog.get_logger(__name__)

Ring = Callable[[str], None]


class UnitOfWork:
    """One transaction: its session, and the doorbells to ring if it commits."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._bells: Counter[str] = Counter()

    def ring(self, queue: str, times: int = 1) -> None:
        """Ring `queue` after the commit: once for each worker that should come."""
        self._bells[queue] += times

    def bells(self) -> Counter[str]:
        """What will be rung: queue names with their number of rings."""
        return self._bells


class Database:
    """The engine together with the doorbell; the one object that use cases need to do their work."""

    def __init__(self, engine: Engine, ring: Ring) -> None:
        self.engine = engine
        self._ring = ring
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._readers = sessionmaker(engine.execution_options(**{READ_ONLY: True}), expire_on_commit=False)

    @classmethod
    def open(cls, settings: Settings, ring: Ring) -> Database:
        """A database by settings. `ring(queue)` is called after commits."""
        # Tables refer to each other by name: all of them have to be known before the first statement.
        import_module("services.tables")
        return cls(build_engine(settings), ring)

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()

    @contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        """A writing transaction: committed when the block ends, rolled back when it raises; then the bells."""
        with self._sessions() as session:
            uow = UnitOfWork(session)
            with session.begin():
                yield uow
        for queue, times in uow.bells().items():
            for _ in range(times):
                try:
                    self._ring(queue)
                except Exception as error:  # noqa: BLE001 - whatever a broker raises, the rows are safe
                    log.warning("doorbell_failed", queue=queue, error=f"{type(error).__name__}: {error}")
                    break

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that only reads: on SQLite it doesn't wait for writers and doesn't hold them up."""
        with self._readers() as session:
            yield session
