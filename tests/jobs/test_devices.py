"""Work for devices: which queue it goes to, who takes it, and what becomes of it when no worker has a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from services.analyses.model import AnalysisOptions
from services.database import Database
from services.database.base import FromNow, utc_now
from services.jobs import repository
from services.jobs.errors import WorkerWithoutDeviceError
from services.jobs.health import require_healthy_workers
from services.jobs.model import DeviceState, WorkerDevice
from services.jobs.models import JobKind, JobRow, WorkerRow
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from tests.conftest import QUICK
from tests.drivers import FIRST, SECOND, Driver, gpu
from tests.jobs.support import Bench
from tests.recovery.support import eventually, worker_process
from worker.celery_app import DeviceWithoutQueueError, run_worker
from worker.runner import Runner

QUEUE = "gpu.cuda"
SERVING = WorkerDevice(FIRST, "NVIDIA H200", DeviceState.SERVING, "")


@pytest.fixture
def on_gpus(bench: Bench) -> Bench:
    """A service with one class of GPUs that waits for a worker no longer than a moment."""
    return bench.with_settings(gpu_classes=("cuda",), device_patience=timedelta(microseconds=1))


def report(bench: Bench, device: WorkerDevice | None, *, name: str = "gpu-worker", running: int = 0) -> None:
    """A worker for the queue reports in."""
    with bench.database.unit_of_work() as uow:
        row = {
            "id": name, "host": "here", "pid": 1, "version": "0", "queues": [QUEUE], "devices": ["cuda"],
            "device": None if device is None else {
                "id": device.id, "name": device.name, "state": device.state.value, "detail": device.detail,
            },
            "running": running, "started_at": utc_now(),
        }  # fmt: skip
        repository.report_worker(uow.session, row)


def queues(bench: Bench) -> list[tuple[str, str]]:
    """(queue, device class) of the probe jobs that wait."""
    with bench.database.reading() as session:
        rows = session.execute(
            select(JobRow.queue, JobRow.device_class)
            .where(JobRow.kind == JobKind.PROBE, JobRow.state == "queued")
            .order_by(JobRow.queue, JobRow.device_class)
        )
        return [(queue, device_class) for queue, device_class in rows]


# -------------------------------------------------------------------------------- waiting for a worker with a device


def test_work_that_no_worker_has_a_device_for_is_run_without_one_in_the_end(on_gpus: Bench, rung: list[str]) -> None:
    on_gpus.submit_and_read(targets=2)
    assert queues(on_gpus) == [("cpu", "cpu")] * 2 + [(QUEUE, "cuda")] * 2
    assert on_gpus.reconciler.tick().without_device == 0, "nobody has waited yet"
    rung.clear()
    assert on_gpus.reconciler.tick().without_device == 2
    assert rung == ["cpu"]
    assert queues(on_gpus) == [("cpu", "absent")] * 2 + [("cpu", "cpu")] * 2
    assert on_gpus.reconciler.tick().without_device == 0


def test_a_job_without_a_device_keeps_its_checks_and_is_nobody_s_to_reuse(on_gpus: Bench) -> None:
    on_gpus.submit_and_read(targets=1)
    with on_gpus.database.unit_of_work() as uow:
        uow.session.execute(update(JobRow).where(JobRow.queue == QUEUE).values(reuse_key="what it rests on"))
    on_gpus.reconciler.tick()
    on_gpus.reconciler.tick()
    on_gpus.claim()
    (absent,) = on_gpus.claim()
    assert (absent.device_class, absent.checks) == ("absent", ("device_compare",))
    with on_gpus.database.reading() as session:
        assert session.get_one(JobRow, absent.job_id).reuse_key is None


@pytest.mark.parametrize("running", [0, 1])
def test_work_waits_for_a_worker_that_serves_however_long_its_line_is(on_gpus: Bench, running: int) -> None:
    report(on_gpus, SERVING, running=running)
    on_gpus.submit_and_read(targets=2)
    for _ in range(3):
        assert on_gpus.reconciler.tick().without_device == 0
    assert queues(on_gpus).count((QUEUE, "cuda")) == 2


@pytest.mark.parametrize(
    "device",
    [
        None,
        WorkerDevice(None, None, DeviceState.WAITING, "there is no CUDA device on this machine"),
        WorkerDevice(FIRST, "NVIDIA H200", DeviceState.OUT_OF_SERVICE, "process 42 is still on the device"),
    ],
)
def test_a_worker_whose_device_is_not_fit_is_as_good_as_none(on_gpus: Bench, device: WorkerDevice | None) -> None:
    report(on_gpus, device)
    on_gpus.submit_and_read(targets=1)
    on_gpus.reconciler.tick()
    assert on_gpus.reconciler.tick().without_device == 1


def test_a_worker_that_is_silent_has_no_device_any_more(on_gpus: Bench) -> None:
    report(on_gpus, SERVING)
    with on_gpus.database.unit_of_work() as uow:
        uow.session.execute(update(WorkerRow).values(seen_at=FromNow(timedelta(hours=-1))))
    on_gpus.submit_and_read(targets=1)
    on_gpus.reconciler.tick()
    assert on_gpus.reconciler.tick().without_device == 1


def test_a_worker_that_comes_back_in_time_finds_its_work(bench: Bench) -> None:
    bench = bench.with_settings(gpu_classes=("cuda",), device_patience=timedelta(hours=1))
    bench.submit_and_read(targets=1)
    for _ in range(3):
        assert bench.reconciler.tick().without_device == 0
    report(bench, SERVING)
    (claim,) = bench.claim(QUEUE)
    assert claim.device_class == "cuda"


def test_the_simulated_device_needs_no_worker_with_a_gpu(bench: Bench) -> None:
    bench = bench.with_settings(gpu_classes=("sim",), device_patience=timedelta(microseconds=1))
    bench.submit_and_read(targets=1)
    bench.reconciler.tick()
    assert bench.reconciler.tick().without_device == 0
    assert ("gpu.sim", "sim") in queues(bench)


# -------------------------------------------------------------------------------- what operators see


def test_a_worker_without_a_fit_device_is_unhealthy_and_says_why(on_gpus: Bench) -> None:
    report(on_gpus, SERVING)
    assert require_healthy_workers(on_gpus.settings, "here") == [QUEUE]
    report(on_gpus, WorkerDevice(FIRST, "NVIDIA H200", DeviceState.OUT_OF_SERVICE, "process 42 is still there"))
    with pytest.raises(WorkerWithoutDeviceError, match=r"gpu\.cuda: its device is out of service \(process 42"):
        require_healthy_workers(on_gpus.settings, "here")


def test_a_device_for_a_worker_that_needs_none_is_refused(service_settings: Settings) -> None:
    with pytest.raises(DeviceWithoutQueueError, match=r"cuda:0 is for a queue gpu\.<class>"):
        run_worker(service_settings, ["cpu"], device="cuda:0")


# -------------------------------------------------------------------------------- workers

SOURCE = """
import torch
from torch import nn


class Right(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver")


@pytest.fixture
def with_driver(service_settings: Settings, driver: Driver, tmp_path: Path) -> Settings:
    """Settings of workers of this machine, whose driver lists made-up GPUs."""
    changes = {
        "gpu_classes": ("cuda",),
        "nvidia_smi": driver.command,
        "device_locks": tmp_path / "locks",
        "device_patience": timedelta(microseconds=1),
        "sandbox": False,
    }
    return service_settings.model_copy(update=changes)


@pytest.fixture
def submit(database: Database, with_driver: Settings, tmp_path: Path) -> Callable[[], str]:
    def make() -> str:
        directory = tmp_path / "repository"
        directory.mkdir(exist_ok=True)
        (directory / "layers.py").write_text(SOURCE, encoding="utf-8")
        with read_directory(directory) as tree:
            snapshot = SnapshotStore(with_driver.snapshot_dir).put(tree)
        options = AnalysisOptions(checks=("device_compare",))
        return Bench(database, with_driver).analyses.submit(snapshot, options).analysis_id

    return make


@pytest.fixture
def runner(database: Database, with_driver: Settings) -> Iterator[Callable[..., Runner]]:
    started: list[Runner] = []

    def make(*queues: str, **changes: object) -> Runner:
        # It reports often; whoever reads what it reported is as patient as everywhere.
        settings = with_driver.model_copy(update={"heartbeat": QUICK["heartbeat"], **changes})
        runner = Runner(settings, database, queues)
        runner.start()
        started.append(runner)
        return runner

    yield make
    for runner in started:
        runner.stop()
        runner.join()


def told(database: Database, settings: Settings) -> list[tuple[str | None, DeviceState]]:
    with database.reading() as session:
        return sorted(
            ((held.device.id, held.device.state) for held in repository.devices(session, settings.heartbeat * 6)),
            key=str,
        )


def test_a_device_that_torch_does_not_see_in_the_sandbox_is_not_replaced_by_the_cpu(
    database: Database, with_driver: Settings, driver: Driver, submit: Callable[[], str], runner: Callable[..., Runner]
) -> None:
    driver.lists(gpu(FIRST))
    analysis_id = submit()
    bench = Bench(database, with_driver)
    on_cpu, on_gpu = runner("cpu"), runner(QUEUE)
    assert on_cpu.serve() == 1, "the snapshot is read"
    eventually(lambda: told(database, with_driver) == [(FIRST, DeviceState.SERVING)], "the worker serves")
    with capture_logs() as events:
        assert on_gpu.serve() == 1
    assert [event["state"] for event in events if event["event"] == "device"] == ["out of service"]
    eventually(lambda: told(database, with_driver) == [(FIRST, DeviceState.OUT_OF_SERVICE)], "it reports that")
    assert queues(bench) == [(QUEUE, "cuda")], "given back, for a worker that does see one"
    bench.reconciler.tick()
    assert bench.reconciler.tick().without_device == 1
    assert on_gpu.serve() == 0
    assert on_cpu.serve() == 1
    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    (check,) = report.targets[0].checks
    assert (check.check, check.verdict, check.device) == ("device_compare", "skipped", "cpu")
    assert check.summary.startswith("no worker with a CUDA device: ")
    assert check.evidence["cause"] == "no worker with a CUDA device"
    with database.reading() as session:
        assert set(session.scalars(select(JobRow.losses))) == {0}, "nothing was lost"


def test_a_worker_looks_at_its_device_after_each_batch(
    database: Database, with_driver: Settings, driver: Driver, submit: Callable[[], str], runner: Callable[..., Runner]
) -> None:
    driver.lists(gpu(FIRST))
    submit()
    assert runner("cpu").serve() == 1, "the snapshot is read"
    # The budget is spent, so that the batch has no need of a device that nobody has here.
    on_gpu = runner(QUEUE, analysis_budget=timedelta(microseconds=1))
    eventually(lambda: told(database, with_driver) == [(FIRST, DeviceState.SERVING)], "the worker serves")
    driver.lists(gpu(FIRST, used=900, processes=[(42, "C", "python")]))
    with capture_logs() as events:
        assert on_gpu.serve() == 1
    (event,) = (event for event in events if event["event"] == "device")
    assert event["detail"] == "after a job, process 42 (python) is still on the device"
    submit()
    assert on_gpu.serve() == 0
    driver.lists(gpu(FIRST))
    eventually(lambda: told(database, with_driver) == [(FIRST, DeviceState.SERVING)], "it serves again")


def test_a_worker_without_a_device_leaves_the_work_to_others(
    database: Database, with_driver: Settings, submit: Callable[[], str], runner: Callable[..., Runner]
) -> None:
    submit()
    both = runner("cpu", QUEUE)
    eventually(lambda: told(database, with_driver) == [(None, DeviceState.WAITING)], "it looks in vain")
    assert both.serve() == 1
    assert queues(Bench(database, with_driver)) == [(QUEUE, "cuda")]


def test_two_threads_of_a_worker_do_not_share_its_device(
    database: Database, with_driver: Settings, driver: Driver, runner: Callable[..., Runner]
) -> None:
    driver.lists(gpu(FIRST))
    Bench(database, with_driver.model_copy(update={"target_batch": 1})).submit_and_read(targets=6)
    working = runner(QUEUE)
    eventually(lambda: told(database, with_driver) == [(FIRST, DeviceState.SERVING)], "the worker serves")
    taken: list[int] = []
    start = threading.Barrier(4)

    def take() -> None:
        start.wait()
        taken.append(len(working.take()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([count for count in taken if count]) == 1
    working._duty.hand_back(used=False)  # type: ignore[union-attr]


def test_worker_processes_take_a_device_each_and_a_killed_one_frees_its_own(
    database: Database, with_driver: Settings, driver: Driver, tmp_path: Path
) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    serving, waiting = DeviceState.SERVING, DeviceState.WAITING
    quick = with_driver.model_copy(update=QUICK)

    def state() -> list[tuple[str | None, DeviceState]]:
        return told(database, quick)

    with (
        worker_process(quick, tmp_path / "one.log", QUEUE) as one,
        worker_process(quick, tmp_path / "two.log", QUEUE),
        worker_process(quick, tmp_path / "three.log", QUEUE),
    ):
        eventually(
            lambda: state() == sorted([(FIRST, serving), (SECOND, serving), (None, waiting)], key=str),
            "two of three workers have a device",
        )
        one.kill()
        one.wait()
        eventually(
            lambda: state() == sorted([(FIRST, serving), (SECOND, serving)], key=str),
            "the third worker has taken over, and the first is forgotten",
        )
