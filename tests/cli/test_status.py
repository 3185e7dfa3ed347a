"""`gradproof status` shows queues, devices and their holders; each GPU gets a worker of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli.main import run
from api.cli.processes import _named_queues, _workers
from services.database import Database
from services.database.base import utc_now
from services.jobs import repository
from services.settings import Settings
from tests.drivers import FIRST, SECOND, Driver, gpu
from tests.jobs.support import SNAPSHOT, Bench


@pytest.fixture
def service(database: Database, service_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A service whose settings the command line comes to as well."""
    for name in ("database_url", "broker_url", "data_dir"):
        monkeypatch.setenv(f"GRADPROOF_{name.upper()}", str(getattr(service_settings, name)))
    return database


def report(database: Database, worker: str, **device: str | None) -> None:
    with database.unit_of_work() as uow:
        row = {
            "id": worker, "host": "host-one", "pid": 4711, "version": "0", "queues": ["gpu.cuda"], "devices": ["cuda"],
            "device": {"id": None, "name": None, "detail": "", **device}, "running": 1, "started_at": utc_now(),
        }  # fmt: skip
        repository.report_worker(uow.session, row)


def test_an_idle_service_has_nothing_to_show(service: Database, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    assert "0 workers report in.\nNothing waits" in capfd.readouterr().out


def test_queues_and_devices_are_shown_with_who_holds_them(
    service: Database, service_settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    Bench(service, service_settings).analyses.submit(SNAPSHOT)
    report(service, "one", id=FIRST, name="NVIDIA H200", state="serving")
    report(service, "two", state="waiting", detail=f"{FIRST}: held by process [42] of this machine")
    assert run(["status", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(queue["queue"], queue["waiting"]) for queue in told["queues"]] == [("cpu", 1)]
    assert {(held["worker"], held["device"]["state"]) for held in told["devices"]} == {
        ("one", "serving"),
        ("two", "waiting"),
    }
    assert run(["status"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    for words in ("2 workers report in", "cpu 1 0", "serving", "process 4711 on", "held by process [42]", "gpu.cuda"):
        assert words in shown, shown


def test_serve_starts_a_worker_for_each_gpu_and_one_for_what_needs_none(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "driver")
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    settings = Settings(gpu_classes=("cuda", "sim"), nvidia_smi=driver.command)
    assert list(_workers(settings)) == [
        (("control", "cpu", "gpu.sim"), None),
        (("gpu.cuda",), FIRST),
        (("gpu.cuda",), SECOND),
    ]


def test_serve_without_a_gpu_says_so_and_serves(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver = Driver(tmp_path / "driver")
    settings = Settings(gpu_classes=("cuda",), nvidia_smi=driver.command)
    assert list(_workers(settings)) == [(("control", "cpu"), None)]
    driver.fails()
    assert list(_workers(settings)) == [(("control", "cpu"), None)]
    said = capfd.readouterr().err
    assert "there is no CUDA device on this machine" in said
    assert "GPU is lost" in said


def test_a_worker_for_gpu_serves_all_classes_of_them() -> None:
    settings = Settings(gpu_classes=("h200", "l4"))
    assert _named_queues("cpu, gpu", settings) == ["cpu", "gpu.h200", "gpu.l4"]
    assert _named_queues("gpu.l4", settings) == ["gpu.l4"]
    assert _named_queues("gpu", Settings()) == ["gpu"]
