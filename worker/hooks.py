"""Has the hooks of projects called, in a thread of its own of a control worker: the other side may take its time."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from services.database import Database
from services.projects.hook_sending import send_due
from services.settings import Settings

log = structlog.get_logger(__name__)

_EVERY_S: Final = 2.0


def keep_telling(database: Database, settings: Settings, stop: threading.Event) -> None:
    """Call what is due until `stop` is set."""
    while not stop.wait(_EVERY_S):
        try:
            send_due(database, settings)
        except Exception as error:  # noqa: BLE001 - what was not noted is told once more when its lease has run out
            log.warning("hooks_failed", error=f"{type(error).__name__}: {error}")
