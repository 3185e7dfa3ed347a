"""Has lost webhooks asked for, in a thread of its own of a control worker: reading a long log takes minutes."""

from __future__ import annotations

import threading

import structlog

from services.forges.redelivery import Redelivery
from services.settings import Settings

log = structlog.get_logger(__name__)


def keep_asking(redelivery: Redelivery, settings: Settings, stop: threading.Event) -> None:
    """Hold a round whenever it is somebody's turn, until `stop` is set. The first is soon: we may have been away."""
    while not stop.wait(settings.reconcile_every.total_seconds()):
        try:
            redelivery.round(stop.is_set)
        except Exception as error:  # noqa: BLE001 - the next round, or another process, makes up for it
            log.warning("redelivery_failed", error=f"{type(error).__name__}: {error}")
