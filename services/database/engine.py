"""Builds the engine for either database.

SQLite: write-ahead log (readers never wait for a writer), foreign keys on, 30 s of patience for another process's
lock, and BEGIN IMMEDIATE for writers: a transaction that reads first and writes later would otherwise fail with
"database is locked" at its first write, without waiting, whenever another one wrote in between. PostgreSQL: psycopg 3,
connections tested before use, so that a restarted server costs nothing but a new connection.
This module must not know any table.
"""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection as SqliteConnection

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from services.database.errors import DatabaseUnavailableError
from services.settings import Settings

READ_ONLY = "gradproof_read_only"
SQLITE_PATIENCE_MS = 30_000


def build_engine(settings: Settings) -> Engine:
    """The engine for `settings.effective_database_url`.

    Raises `DatabaseUnavailableError` for a URL that names neither SQLite nor PostgreSQL.
    """
    try:
        url = make_url(settings.effective_database_url)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise DatabaseUnavailableError("GRADPROOF_DATABASE_URL is not a database URL", reason=str(error)) from None
    if backend == "sqlite":
        if url.database in {None, "", ":memory:"}:
            raise DatabaseUnavailableError(
                "GRADPROOF_DATABASE_URL names an SQLite database in memory, which workers can't share: name a file"
            )
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": SQLITE_PATIENCE_MS / 1000})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.drivername == "postgresql+psycopg":
        # A connection that hangs (a half-open network) is given up after 10 s; TCP keep-alive notices dead peers.
        return create_engine(
            url,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=16,
            connect_args={"connect_timeout": 10, "keepalives_idle": 30, "application_name": "gradproof"},
        )
    raise DatabaseUnavailableError(
        f"GRADPROOF_DATABASE_URL asks for {url.drivername}: SQLite and PostgreSQL (psycopg) are supported",
        driver=url.drivername,
    )


def _prepare_sqlite(connection: SqliteConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver's own transaction control begins too late (at the first write): it is switched off, and
    # `_begin_sqlite` begins every transaction.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={SQLITE_PATIENCE_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
