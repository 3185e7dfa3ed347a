"""What the service survives, with real workers, servers and probes: every job finishes, none twice, nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.database.migrate import upgrade
from services.settings import Settings
from tests.conftest import QUICK, MakeSettings
from tests.recovery.support import (
    TARGETS,
    Service,
    eventually,
    kill_in_mid_run,
    worker_process,
    write_repository,
)
from tests.servers import PostgresServer, ValkeyServer

OpenService = Callable[[Settings], Service]


@pytest.fixture
def make_settings(make_settings: MakeSettings) -> MakeSettings:
    return lambda **changes: make_settings(**QUICK | changes)


@pytest.fixture
def open_service(tmp_path: Path) -> Iterator[OpenService]:
    opened: list[Service] = []

    def make(settings: Settings) -> Service:
        service = Service(settings, write_repository(tmp_path / "repository"))
        opened.append(service)
        return service

    yield make
    for service in opened:
        service.close()


def quick(settings: Settings) -> Settings:
    """One target a batch, so that much can happen in between; no sandbox, which has tests of its own."""
    return settings.model_copy(update={"target_batch": 1, "concurrency": 2, "sandbox": False})


def test_a_worker_killed_in_mid_run_costs_only_time(
    service_settings: Settings, open_service: OpenService, tmp_path: Path
) -> None:
    settings = quick(service_settings)
    service = open_service(settings)
    analysis_id = service.submit()
    with worker_process(settings, tmp_path / "first.log") as first:
        kill_in_mid_run(first, service, analysis_id)
    assert not service.view(analysis_id).ended
    done_before = {result.id for result in service.results(analysis_id)}
    assert done_before
    with worker_process(settings, tmp_path / "second.log"):
        eventually(lambda: service.view(analysis_id).ended, "the second worker finishes")
    service.assert_everything_ran_once(analysis_id)
    losses = [job.losses for job in service.jobs(analysis_id)]
    assert 1 <= sum(losses) <= settings.concurrency
    assert max(losses) == 1


def test_a_worker_asked_to_stop_gives_its_jobs_back_at_once(
    embedded_settings: Settings, open_service: OpenService, tmp_path: Path
) -> None:
    settings = quick(embedded_settings)
    service = open_service(settings)
    analysis_id = service.submit()
    with worker_process(settings, tmp_path / "first.log") as first:
        eventually(lambda: service.is_mid_run(analysis_id), "the first worker is in mid-run")
        first.send_signal(signal.SIGTERM)
        eventually(
            lambda: not any(job.owner and not job.finished_at for job in service.jobs(analysis_id)), "jobs are free"
        )
        eventually(lambda: first.poll() is not None, "the first worker ends")
        assert first.returncode == 0
    assert not service.view(analysis_id).ended
    with worker_process(settings, tmp_path / "second.log"):
        eventually(lambda: service.view(analysis_id).ended, "the second worker finishes")
    service.assert_everything_ran_once(analysis_id)
    assert [job.losses for job in service.jobs(analysis_id)] == [0] * (1 + TARGETS)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_every_signal_to_stop_ends_a_worker_in_good_order(
    embedded_settings: Settings, open_service: OpenService, tmp_path: Path, sent: signal.Signals
) -> None:
    service = open_service(embedded_settings)
    with worker_process(embedded_settings, tmp_path / "worker.log") as worker:
        eventually(lambda: service.workers() == [worker.pid], "the worker reports in")
        worker.send_signal(sent)
        eventually(lambda: worker.poll() is not None, "the worker ends")
        assert worker.returncode == 0
    assert service.workers() == []


def test_a_broker_killed_and_started_again_in_mid_run_costs_only_time(
    sqlite_url: str, make_settings: MakeSettings, open_service: OpenService, tmp_path: Path
) -> None:
    server = ValkeyServer()
    try:
        server.start()
        settings = quick(make_settings(database_url=sqlite_url, broker_url=server.url()))
        service = open_service(settings)
        analysis_id = service.submit()
        with worker_process(settings, tmp_path / "worker.log"):
            eventually(lambda: service.is_mid_run(analysis_id), "the worker is in mid-run")
            server.kill()
            unheard = service.submit(static_only=True)
            server.start()
            for submitted in (analysis_id, unheard):
                eventually(lambda submitted=submitted: service.view(submitted).ended, "the worker finishes")
        service.assert_everything_ran_once(analysis_id)
        assert service.view(unheard).status == "finished"
        assert sum(job.losses for job in service.jobs(analysis_id)) == 0
    finally:
        server.close()


def test_a_database_killed_and_started_again_in_mid_run_costs_only_time(
    make_settings: MakeSettings, open_service: OpenService, tmp_path: Path
) -> None:
    server = PostgresServer(durable=True)
    try:
        server.start()
        settings = quick(make_settings(database_url=server.create_database("restarted")))
        upgrade(settings)
        service = open_service(settings)
        analysis_id = service.submit()
        with worker_process(settings, tmp_path / "worker.log"):
            eventually(lambda: service.is_mid_run(analysis_id), "the worker is in mid-run")
            server.stop("immediate")
            server.start()
            eventually(lambda: service.view(analysis_id).ended, "the worker finishes")
        service.assert_everything_ran_once(analysis_id)
    finally:
        server.close()
