"""Brings the tables to this version, and says whether they are.

The migrations are a package of the product and travel in its wheel, so that nothing depends on the directory a
command is started in. Tables come to be in no other way, in tests neither. This module must not know any table.
"""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from services.database.base import Base
from services.database.engine import build_engine
from services.database.errors import DatabaseUnavailableError, SchemaOutdatedError
from services.settings import Settings

# Any number that no other program on the same PostgreSQL database uses: upgrades that start together wait in line.
ADVISORY_LOCK = 0x6772_6164


def alembic_configuration(connection: Connection | None = None) -> Config:
    """Alembic set up for the packaged migrations, working on `connection`."""
    configuration = Config()
    configuration.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    configuration.attributes["connection"] = connection
    return configuration


def upgrade(settings: Settings) -> str:
    """Run all migrations that are missing and return the revision reached. Safe to call at the same time twice.

    Raises `DatabaseUnavailableError` if the database can't be reached.
    """
    engine = build_engine(settings)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            command.upgrade(alembic_configuration(connection), "head")
    except OperationalError as error:
        raise DatabaseUnavailableError("The database can't be upgraded", reason=str(error.orig)) from error
    finally:
        engine.dispose()
    return head()


def head() -> str:
    """The revision that this version of the product needs."""
    return str(ScriptDirectory.from_config(alembic_configuration()).get_current_head())


def require_current(settings: Settings) -> None:
    """Raise `SchemaOutdatedError` unless the tables are those of this version."""
    engine = build_engine(settings)
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
    except OperationalError as error:
        raise DatabaseUnavailableError("The database can't be reached", reason=str(error.orig)) from error
    finally:
        engine.dispose()
    if current != head():
        raise SchemaOutdatedError(
            "The database is not at this version: run `gradproof db upgrade`", current=current, needed=head()
        )


def differences(settings: Settings) -> list[object]:
    """What `alembic check` would complain about: differences between the tables and the models; empty is good."""
    import services.tables  # noqa: F401, PLC0415 - registers every table with the metadata

    engine = build_engine(settings)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return list(compare_metadata(context, Base.metadata))
    finally:
        engine.dispose()
