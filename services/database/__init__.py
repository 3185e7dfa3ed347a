"""The database: one engine, one base class for tables, one place that commits.

Everything else in `services` flushes and never commits (`unit_of_work` does). This package must not know any table
of the domain, the broker, or how it is reached.
"""

from __future__ import annotations

from services.database.base import Base
from services.database.engine import build_engine
from services.database.errors import DatabaseUnavailableError, SchemaOutdatedError
from services.database.unit_of_work import Database, UnitOfWork
from services.identifiers import new_id

__all__ = [
    "Base",
    "Database",
    "DatabaseUnavailableError",
    "SchemaOutdatedError",
    "UnitOfWork",
    "build_engine",
    "new_id",
]
