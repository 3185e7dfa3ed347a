"""What can be wrong with the database, in words for an operator."""

from __future__ import annotations

from sqlalchemy.exc import DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from services.problems import SurroundingsError


class DatabaseUnavailableError(SurroundingsError):
    """The database can't be reached or refuses the work."""

    code = "database-unavailable"
    title = "The database can't be used"


class SchemaOutdatedError(SurroundingsError):
    """The tables are not those of this version: `gradproof db upgrade` was not run."""

    code = "schema-outdated"
    title = "The database has to be upgraded"


def as_unavailable(error: BaseException) -> DatabaseUnavailableError | None:
    """A driver's complaint that the database is away or busy, as an error with a name; None for anything else."""
    if isinstance(error, (OperationalError, InterfaceError, DisconnectionError, PoolTimeoutError)):
        return DatabaseUnavailableError("The database can't be reached, or does not answer in time: try again")
    return None
