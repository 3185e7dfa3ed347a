"""Whether the workers of one machine are alive and get anywhere: what a container's health check asks.

Alive is not enough: after a broken connection to a broker a worker can live on and hear no doorbell. So a worker that
does nothing while work waits in its queue is unhealthy, too, and so is one whose GPU is not there or not fit.
This module must not know how workers are started.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from services.database import Database
from services.jobs import repository
from services.jobs.errors import WorkerSilentError, WorkerStalledError, WorkerWithoutDeviceError
from services.jobs.model import DeviceState
from services.settings import Settings

# A doorbell that was lost is rung again after two rounds of the reconciler (10 s by default). Six times that is no
# bad luck any more.
IDLE_BESIDE_WORK = timedelta(seconds=60)


def require_healthy_workers(settings: Settings, host: str) -> Sequence[str]:
    """The queues that workers on `host` serve.

    Raises `WorkerSilentError` if no worker on `host` was heard of for three heartbeats, `WorkerWithoutDeviceError` if
    one needs a GPU and has none that is fit, and `WorkerStalledError` if one does nothing although work has been
    waiting in its queues for a minute.
    """
    database = Database.open(settings, ring=lambda _queue: None)
    try:
        with database.reading() as session:
            workers = repository.live_workers(session, settings.heartbeat * 3)
            here = [worker for worker in workers if worker.host == host]
            waiting = {
                depth.queue: depth.oldest_s
                for depth in repository.depths(session)
                if depth.oldest_s is not None and depth.oldest_s > IDLE_BESIDE_WORK.total_seconds()
            }
            if not here:
                raise WorkerSilentError("No worker of this machine has reported lately", host=host)
            for held in repository.devices(session, settings.heartbeat * 3):
                if held.host == host and held.device.state is not DeviceState.SERVING:
                    raise WorkerWithoutDeviceError(
                        f"Worker {held.worker} takes no jobs of {', '.join(held.queues)}: its device is"
                        f" {held.device.state.value} ({held.device.detail})",
                        worker=held.worker,
                        device=held.device.id,
                        queues=list(held.queues),
                    )
            for worker in here:
                neglected = sorted(set(worker.queues) & set(waiting))
                if worker.running == 0 and neglected:
                    raise WorkerStalledError(
                        "A worker does nothing while work waits in its queue",
                        worker=worker.id,
                        queues=neglected,
                        oldest_s=round(max(waiting[queue] or 0.0 for queue in neglected), 1),
                    )
            return sorted({queue for worker in here for queue in worker.queues})
    finally:
        database.close()
