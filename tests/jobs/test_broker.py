"""The Celery application: doorbells only, to known queues only, JSON only. On both brokers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from queue import Empty
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError as BrokerError

from services.database import Database
from services.jobs.broker import DOORBELL, build_broker, queue_names
from services.jobs.doorbell import Doorbell
from services.settings import Settings
from tests.conftest import MakeSettings
from tests.jobs.support import SNAPSHOT, Bench
from tests.servers import ValkeyServer
from worker.celery_app import UnknownQueueError, run_worker


@pytest.fixture
def settings(make_settings: MakeSettings, broker_url: str, sqlite_url: str) -> Settings:
    return make_settings(database_url=sqlite_url, broker_url=broker_url, gpu_classes=("h200",))


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    app = build_broker(settings)
    yield app
    app.close()


def next_message(app: Celery, queue: str) -> dict[str, Any] | None:
    """Take one message out of a queue, as a worker would."""
    with app.connection_for_read() as connection, connection.SimpleQueue(app.amqp.queues[queue]) as inbox:
        try:
            message = inbox.get(timeout=5)
        except inbox.Empty:
            return None
        message.ack()
        return {"task": message.headers["task"], "type": message.content_type, "body": bytes(message.body)}


def test_there_is_a_queue_for_control_for_the_cpu_and_for_each_class_of_gpus(settings: Settings) -> None:
    assert queue_names(settings) == ("control", "cpu", "gpu.h200")


@pytest.mark.parametrize("queue", ["control", "cpu", "gpu.h200"])
def test_a_doorbell_reaches_its_queue_and_says_nothing_but_the_name(
    app: Celery, settings: Settings, queue: str
) -> None:
    bell = Doorbell.open(settings)
    bell.ring(queue)
    bell.close()
    message = next_message(app, queue)
    assert message is not None
    assert (message["task"], message["type"]) == (DOORBELL, "application/json")
    arguments, keywords, _ = json.loads(message["body"])
    assert (arguments, keywords) == ([queue], {})


def test_a_queue_that_nobody_declared_is_not_made_on_the_fly(settings: Settings) -> None:
    bell = Doorbell.open(settings)
    with pytest.raises((ImproperlyConfigured, KeyError), match="nobody"):
        bell.ring("nobody")
    bell.close()


def test_nothing_but_json_is_accepted_and_no_result_is_kept(app: Celery) -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_ignore_result
    assert app.backend.as_uri() == "disabled://"
    assert not app.conf.task_acks_late
    assert app.conf.worker_prefetch_multiplier == 1
    assert not app.conf.task_create_missing_queues


def test_a_worker_for_an_unknown_queue_does_not_start(settings: Settings) -> None:
    with pytest.raises(UnknownQueueError, match=r"gpu\.a100.*gpu\.h200"):
        run_worker(settings, ["cpu", "gpu.a100"])


def test_a_broker_that_is_away_does_not_lose_a_submission(make_settings: MakeSettings, sqlite_url: str) -> None:
    server = ValkeyServer()
    server.start()
    settings = make_settings(
        database_url=sqlite_url, broker_url=server.url(), reconcile_every=timedelta(milliseconds=1)
    )
    bell = Doorbell.open(settings)
    database = Database.open(settings, bell.ring)
    bench = Bench(database, settings)
    try:
        server.kill()
        with pytest.raises(BrokerError):
            bell.ring("cpu")
        analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
        assert bench.status(analysis_id) == "queued"
        server.start()
        assert bench.reconciler.tick().rung == ("cpu",)
        assert next_message(build_broker(settings), "cpu") is not None
    finally:
        database.close()
        bell.close()
        server.close()


def test_a_file_broker_never_hands_out_half_a_message(embedded_settings: Settings) -> None:
    """With kombu's own transport a reader that is quick enough gets an empty file, and its worker ends."""
    rings, readers = 300, 3
    taken: list[object] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        app = build_broker(embedded_settings)
        try:
            with app.connection_for_read() as connection:
                channel = connection.channel()
                while True:
                    was_done = done.is_set()
                    try:
                        taken.append(channel._get("cpu")["body"])
                    except Empty:
                        if was_done:
                            return
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    bell = Doorbell.open(embedded_settings)
    for _ in range(rings):
        bell.ring("cpu")
    done.set()
    for thread in threads:
        thread.join()
    bell.close()
    assert failures == []
    assert len(taken) == rings


def test_a_damaged_message_is_dropped_and_the_next_one_heard(embedded_settings: Settings) -> None:
    app = build_broker(embedded_settings)
    bell = Doorbell.open(embedded_settings)
    folder = embedded_settings.data_dir / "broker"
    (folder / "00000000000000000000_damaged.cpu.msg").write_bytes(b"")
    (folder / "00000000000000000001_binary.cpu.msg").write_bytes(b"\xff\x00")
    bell.ring("cpu")
    message = next_message(app, "cpu")
    assert message is not None
    assert message["task"] == DOORBELL
    assert list(folder.iterdir()) == []
    bell.close()
    app.close()
