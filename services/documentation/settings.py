"""The page of the settings. Apart from the others: it loads what reads the environment, which nothing else needs."""

from __future__ import annotations

from datetime import timedelta

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from services.documentation.pages import MADE, table
from services.settings import Settings


def settings_table() -> str:
    """Every setting with its variable, default and meaning."""
    rows = []
    for name, field in Settings.model_fields.items():
        rows.append((f"`GRADPROOF_{name.upper()}`", _default(name, field.default), field.description or ""))
    return "\n".join(
        [
            MADE,
            "",
            "# Settings",
            "",
            "Read from the environment. Durations are ISO 8601 (`PT30S`) or seconds; lists are JSON.",
            "",
            *table(("variable", "default", "meaning"), rows),
            "",
        ]
    )


def _default(name: str, value: object) -> str:
    if name == "data_dir":
        return "`~/.gradproof`"
    if name == "python":
        return "the Python that Gradproof runs under"
    if value is PydanticUndefined or value in (None, "", ()):
        return "none"
    if isinstance(value, SecretStr):
        return "none"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return f"`{value}`"
