"""How much a database is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from services.database import Database


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The statements that are made in here."""
    made: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        made.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
