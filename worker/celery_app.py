"""Starts a worker: Celery listens for doorbells, the runner does the work.

The pool has threads: see `worker.runner`. Signals: SIGTERM, SIGINT and SIGQUIT all mean that jobs are given back at
once, without counting as lost, and the process ends as soon as their sandboxes are gone.
This module must not know what jobs do.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Sequence
from types import FrameType

import structlog
from celery.platforms import SecurityWarning
from celery.signals import worker_ready, worker_shutting_down

from services.database import Database
from services.database.migrate import require_current
from services.jobs.broker import build_broker, queue_names
from services.jobs.doorbell import Doorbell
from services.jobs.model import needs_a_device
from services.logs import configure_logging
from services.problems import BadInputError
from services.settings import Settings
from worker.runner import Runner
from worker.tasks import register

log = structlog.get_logger(__name__)


class UnknownQueueError(BadInputError):
    """A worker was asked to serve a queue that does not exist."""

    code = "unknown-queue"
    title = "There is no such queue"


class DeviceWithoutQueueError(BadInputError):
    """A worker was given a device and no queue whose jobs need one."""

    code = "device-without-queue"
    title = "No queue of this worker needs a device"


def run_worker(
    settings: Settings, queues: Sequence[str], *, concurrency: int | None = None, device: str | None = None
) -> int:
    """Serve `queues` until a signal comes; returns the exit code. `concurrency`: default from the settings.

    `device` names the GPU for queues that need one (`worker.devices.inventory.chosen`); None: any that is free.
    Raises `UnknownQueueError` for a queue that the settings do not have, `DeviceWithoutQueueError` for a device that
    no queue needs, `SchemaOutdatedError` before migration, `DatabaseUnavailableError` without a database. A broker that
    is away is waited for, and so is a device.
    """
    known = queue_names(settings)
    for queue in queues:
        if queue not in known:
            raise UnknownQueueError(f"there is no queue {queue!r}: there are {', '.join(known)}", queue=queue)
    if device is not None and not any(needs_a_device(queue) for queue in queues):
        raise DeviceWithoutQueueError(f"{device} is for a queue gpu.<class>: this worker serves {', '.join(queues)}")
    configure_logging()
    # Celery warns whoever runs it as root; mode R of the sandbox wants a root that drops its rights for each job.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    require_current(settings)
    app = build_broker(settings)
    doorbell = Doorbell.open(settings)
    database = Database.open(settings, doorbell.ring)
    runner = Runner(settings, database, queues, device)
    register(app, runner, frozenset(queues))

    asked_to_stop = threading.Event()

    def stop(**_: object) -> None:
        asked_to_stop.set()
        runner.stop()

    asked_early = threading.Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        # An exception raised here could end up in any callback, and be ignored there: the signal would be lost.
        asked_early.set()

    def end_if_asked(**_: object) -> None:
        if asked_early.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    worker_shutting_down.connect(stop, weak=False)
    worker_ready.connect(end_if_asked, weak=False)
    # Until Celery listens to signals itself, they are noted, and looked at before it starts and when it is ready.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, note)
    try:
        runner.start()
        worker = app.Worker(
            hostname=f"gradproof@{runner.id}",
            queues=list(queues),
            concurrency=concurrency or settings.concurrency,
            pool="threads",
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_heartbeat=True,
            without_mingle=True,
        )
        if asked_early.is_set():
            return 0
        worker.start()
        # Celery ends with 1 after SIGINT; an end in good order is none of a failure, whoever asked for it.
        return 0 if asked_to_stop.is_set() else int(worker.exitcode or 0)
    finally:
        runner.stop()
        runner.join()
        worker_shutting_down.disconnect(stop)
        worker_ready.disconnect(end_if_asked)
        database.close()
        doorbell.close()
