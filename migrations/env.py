"""Alembic's entry: connects the migrations with the models and a database.

The connection is handed over by `services.database.migrate`; the `alembic` command, used by developers only, has none
and gets one from the settings.
"""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import JSON, Connection

import services.tables  # noqa: F401 - registers every table
from services.database import Base, build_engine
from services.database.base import StoredText, UtcDateTime
from services.settings import Settings


def _render(kind: str, item: object, autogen: AutogenContext) -> str | Literal[False]:
    """Write our own column types by their names into a generated migration."""
    for own, name, text in (
        (UtcDateTime, "UtcDateTime", "UtcDateTime()"),
        (StoredText, "StoredText", "StoredText()"),
        (JSON, "JsonColumn", "JsonColumn"),
    ):
        if kind == "type" and isinstance(item, own):
            autogen.imports.add(f"from services.database.base import {name}")
            return text
    return False


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        render_item=_render,
        # SQLite can't alter most of a table: Alembic copies it instead.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with build_engine(Settings()).begin() as own:
        _run(own)
