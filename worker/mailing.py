"""Has digests sent, in a thread of its own of a control worker: a mail server may take its time."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from services.database import Database
from services.digests.sending import send_due
from services.settings import Settings

log = structlog.get_logger(__name__)

_EVERY_S: Final = 5.0


def keep_mailing(database: Database, settings: Settings, stop: threading.Event) -> None:
    """Send what is due until `stop` is set."""
    while not stop.wait(_EVERY_S):
        try:
            send_due(database, settings)
        except Exception as error:  # noqa: BLE001 - what was not noted is sent once more when its lease has run out
            log.warning("mail_failed", error=f"{type(error).__name__}: {error}")
