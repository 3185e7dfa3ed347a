"""The base class of every table and the few column types that behave the same on SQLite and PostgreSQL.

Constraint names follow one convention, so that migrations can name what they change on both databases. This module
must not know any table.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, MetaData, String
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, always aware and in UTC in Python.

    PostgreSQL keeps `timestamptz`. SQLite has no such type and would drop the offset: what is stored there is UTC
    without one, and it gets its offset back on reading. A naive datetime is refused: it can't be told from a mistake.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a moment without a time zone can't be stored: {value!r}")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StoredText(TypeDecorator[str]):
    """Text of any length, whatever it holds.

    Much of what is stored was written by strangers. PostgreSQL takes no NUL, and no database takes half of a surrogate
    pair: both become U+FFFD, so that an odd character costs a character and not an analysis.
    """

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else storable(value)


def storable(text: str) -> str:
    """The text as `StoredText` keeps it: for parts of texts that are looked for, which are bound as they are."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


# Plain JSON, not JSONB: it keeps the order of keys, takes every escape, and nothing is searched inside it.
JsonColumn = JSON(none_as_null=True)


class Base(DeclarativeBase):
    """The root of all tables."""

    type_annotation_map = {str: StoredText}  # noqa: RUF012 - SQLAlchemy's own way to declare it
    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class FromNow(FunctionElement[datetime]):
    """The database's own clock, plus an offset: `FromNow(timedelta(seconds=30))`.

    Leases are set and compared by one clock, the database's, so that workers whose clocks differ agree on who holds
    what. PostgreSQL's `clock_timestamp()` is used instead of `now()`, which stands still within a transaction.
    """

    type = UtcDateTime()
    inherit_cache = False
    name = "from_now"

    def __init__(self, offset: timedelta = timedelta(0)) -> None:
        super().__init__()
        self.offset = offset


@compiles(FromNow, "postgresql")
def _from_now_postgresql(element: FromNow, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001
    return f"(clock_timestamp() + interval '{element.offset.total_seconds():.6f} seconds')"


@compiles(FromNow, "sqlite")
def _from_now_sqlite(element: FromNow, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001
    # The text has SQLAlchemy's own storage format (six decimals), so that it compares with stored values.
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '{element.offset.total_seconds():+.3f} seconds')"


def utc_now() -> datetime:
    """This machine's clock, for what is shown to people; leases go by `FromNow`."""
    return datetime.now(UTC)
