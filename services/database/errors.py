"""What can be wrong with the database, in words for an operator."""

from __future__ import annotations

from services.problems import SurroundingsError


class DatabaseUnavailableError(SurroundingsError):
    """The database can't be reached or refuses the work."""

    code = "database-unavailable"
    title = "The database can't be used"


class SchemaOutdatedError(SurroundingsError):
    """The tables are not those of this version: `gradproof db upgrade` was not run."""

    code = "schema-outdated"
    title = "The database has to be upgraded"
