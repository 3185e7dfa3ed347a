"""Rings a queue: tells whichever worker listens that there is work.

Best effort by design: the caller commits first, and a ring that is lost is repeated by the reconciler.
This module must not know what the work is.
"""

from __future__ import annotations

from celery import Celery

from services.jobs.broker import DOORBELL, build_broker
from services.settings import Settings


class Doorbell:
    """Sends doorbells through one broker connection pool; safe to use from several threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    @classmethod
    def open(cls, settings: Settings) -> Doorbell:
        """A doorbell by settings; connects when it first rings."""
        return cls(build_broker(settings))

    def ring(self, queue: str) -> None:
        """Ring once. Raises whatever the broker raises: `unit_of_work` logs it and goes on."""
        self._app.send_task(DOORBELL, args=(queue,), queue=queue, ignore_result=True, expires=None)

    def close(self) -> None:
        """Close the connections."""
        self._app.close()
