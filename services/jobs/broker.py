"""The Celery application, built from settings alone.

Both sides use it: the API and the workers to ring, the workers to listen. A message is a doorbell: it says that a queue
has work, and nothing else; which work is decided in the database. So messages may be lost or come twice, are
acknowledged at once (no redelivery, no poison loops), and no result is kept anywhere.
This module must not know tables, nor import what a worker runs.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.entity import Exchange, Queue

from services.jobs.filesystem_broker import SCHEME
from services.jobs.model import CONTROL_QUEUE, CPU_QUEUE, gpu_queue
from services.settings import Settings

DOORBELL = "gradproof.doorbell"
# One message is fetched per poll: at 0.2 s a doorbell is heard within that time, at a cost of 5 directory listings/s.
POLLING_INTERVAL_S = 0.2


def queue_names(settings: Settings) -> tuple[str, ...]:
    """All queues there are: `control`, `cpu` and one per class of GPUs."""
    return (CONTROL_QUEUE, CPU_QUEUE, *(gpu_queue(name) for name in settings.gpu_classes))


def build_broker(settings: Settings) -> Celery:
    """The Celery application for these settings; nothing is connected yet."""
    url = settings.effective_broker_url
    # Our own transport for files; kombu wants a host even where there is none.
    broker = f"{SCHEME}://localhost" if url.startswith("filesystem:") else url
    app = Celery("gradproof", broker=broker, set_as_current=False, fixups=[])
    app.conf.update(
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=_transport_options(settings, url),
        event_serializer="json",
        result_backend=None,
        result_serializer="json",
        task_acks_late=False,
        task_create_missing_queues=False,
        task_default_queue=CONTROL_QUEUE,
        task_ignore_result=True,
        # Ringing is best effort: three tries within half a second (six, if nobody even refuses the connection), then
        # the reconciler does it.
        task_publish_retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2},
        task_queues=[_queue(name) for name in queue_names(settings)],
        task_serializer="json",
        task_store_errors_even_if_ignored=False,
        timezone="UTC",
        # Remote control, gossip and events would be a second, unauthenticated way into workers: the database has all
        # that is needed to watch and to cancel.
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
    )
    return app


def _queue(name: str) -> Queue:
    return Queue(name, Exchange(name, type="direct"), routing_key=name)  # type: ignore[no-untyped-call]


def _transport_options(settings: Settings, url: str) -> dict[str, Any]:
    if url.startswith("filesystem:"):
        folder = settings.data_dir / "broker"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {"data_folder_in": str(folder), "data_folder_out": str(folder), "polling_interval": POLLING_INTERVAL_S}
    if url.startswith(("redis", "rediss", "sentinel")):
        options: dict[str, Any] = {
            # Celery's own redelivery is not what recovers work here; these bound how long it keeps what a dead worker
            # had fetched and how often it looks (its defaults add up to sweeps 100 s apart).
            "visibility_timeout": 60,
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 1,
            # A connection that a restarted server forgot is noticed within these times instead of never.
            "socket_timeout": 15,
            "socket_connect_timeout": 2,
            "health_check_interval": 10,
            "retry_on_timeout": True,
        }
        if not url.startswith("redis+socket"):
            options["socket_keepalive"] = True
        return options
    return {}
