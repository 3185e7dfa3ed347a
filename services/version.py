"""The version of this installation, as reports and workers state it."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """As in the installed distribution; "0+unknown" for a tree that was never installed."""
    try:
        return metadata.version("gradproof")
    except metadata.PackageNotFoundError:
        return "0+unknown"
