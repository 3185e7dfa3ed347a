"""The one Celery task: a doorbell. Whoever hears it works until there is nothing left for it in the database.

Nothing is taken from the message but the name of a queue, which has to be one that this worker serves.
"""

from __future__ import annotations

from celery import Celery

from services.jobs.broker import DOORBELL
from worker.runner import Runner


def register(app: Celery, runner: Runner, queues: frozenset[str]) -> None:
    """Make `app` answer doorbells with `runner`."""

    @app.task(name=DOORBELL, ignore_result=True)
    def doorbell(queue: str) -> None:
        if queue in queues:
            runner.serve()
