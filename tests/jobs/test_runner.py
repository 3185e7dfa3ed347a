"""A worker's own part, in this process and without a broker: from a queued analysis to a settled one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from services.analyses.model import AnalysisOptions, GitSource
from services.analyses.models import AnalysisRow
from services.database import Database
from services.jobs import repository
from services.jobs.models import JobKind, JobRow, JobState
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from tests.conftest import QUICK
from tests.jobs.support import SNAPSHOT, Bench
from tests.recovery.support import eventually
from tests.snapshots.git_server import serve
from worker.runner import Runner

MODULE = """
import os, signal
import torch


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return x * grad_output


class Deadly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
"""

README = """```python
from odd import Odd
import torch
Odd({"width": 5, "depth": {"inner": 3}})(torch.randn(2, 5))
```
"""

ODD = """
import torch


class Odd(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(settings["width"], settings["depth"]["inner"]))

    def forward(self, x):
        return x @ self.weight
"""

SLOW = """
import time
import torch


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return x * x
"""


def running_probes(database: Database) -> list[str]:
    with database.reading() as session:
        running = select(JobRow.id).where(JobRow.kind == JobKind.PROBE, JobRow.state == JobState.RUNNING)
        return list(session.scalars(running))


@pytest.fixture
def submit(database: Database, service_settings: Settings, tmp_path: Path) -> Callable[[str], str]:
    def make(source: str) -> str:
        directory = tmp_path / "repository"
        directory.mkdir(exist_ok=True)
        (directory / "functions.py").write_text(source, encoding="utf-8")
        with read_directory(directory) as tree:
            snapshot = SnapshotStore(service_settings.snapshot_dir).put(tree)
        bench = Bench(database, service_settings)
        return bench.analyses.submit(snapshot, AnalysisOptions(checks=("gradcheck",))).analysis_id

    return make


@pytest.fixture
def runner(database: Database, service_settings: Settings) -> Iterator[Callable[..., Runner]]:
    started: list[Runner] = []

    def make(**changes: object) -> Runner:
        # It reports often; whoever reads what it reported is as patient as everywhere.
        settings = service_settings.model_copy(update={"sandbox": False, "heartbeat": QUICK["heartbeat"], **changes})
        runner = Runner(settings, database, ["control", "cpu", "gpu.sim"])
        runner.start()
        started.append(runner)
        return runner

    yield make
    for runner in started:
        runner.stop()
        runner.join()


def test_one_doorbell_does_all_there_is_to_do(
    database: Database, service_settings: Settings, submit: Callable[[str], str], runner: Callable[..., Runner]
) -> None:
    analysis_id = submit(MODULE)
    assert runner().serve() == 4
    report = Bench(database, service_settings).analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    verdicts = {target.name: [check.verdict for check in target.checks] for target in report.targets}
    assert verdicts["functions:Right"] == ["pass"]
    assert verdicts["functions:Wrong"] == ["fail"]
    assert "pass" not in verdicts["functions:Deadly"]
    assert not report.gate.passed
    assert report.tool.torch is not None
    assert report.tool.sandbox == "off"
    # Importing torch alone takes more.
    assert (report.analysis.peak_memory_bytes or 0) > 100 * 2**20


def test_the_examples_of_a_repository_show_how_its_targets_are_called(
    database: Database, service_settings: Settings, tmp_path: Path, runner: Callable[..., Runner]
) -> None:
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    (tmp_path / "odd.py").write_text(ODD, encoding="utf-8")
    bench = Bench(database, service_settings)
    with read_directory(tmp_path) as tree:
        snapshot = SnapshotStore(service_settings.snapshot_dir).put(tree)
    analysis_id = bench.analyses.submit(snapshot, AnalysisOptions(checks=("gradcheck",))).analysis_id
    assert runner().serve() == 3
    report = bench.analyses.report(analysis_id)
    assert [(item.place, item.outcome, item.captured) for item in report.examples] == [("README.md:2", "ran", 1)]
    (target,) = report.targets
    assert target.harness is not None
    assert (target.harness.source, target.harness.found_by) == ("mined", "readme")
    assert [check.verdict for check in target.checks] == ["pass"]


def test_a_worker_that_can_not_run_anything_says_so_instead_of_trying_for_ever(
    database: Database, service_settings: Settings, submit: Callable[[str], str], runner: Callable[..., Runner]
) -> None:
    analysis_id = submit("import torch\n\n\ndef square(x: torch.Tensor) -> torch.Tensor:\n    return x * x\n")
    runner(python=Path("/nowhere/python")).serve()
    view = Bench(database, service_settings).analyses.get(analysis_id)
    assert view.status == "partial"
    assert view.reason is not None
    assert "/nowhere/python" in view.reason
    with database.reading() as session:
        job = session.scalars(select(JobRow).where(JobRow.kind == JobKind.PROBE)).one()
        assert (job.state, job.losses) == (JobState.INFRA_FAILED, service_settings.max_attempts)


def test_a_snapshot_that_is_not_in_the_store_is_named_and_not_looked_for_for_ever(
    database: Database, service_settings: Settings, runner: Callable[..., Runner]
) -> None:
    bench = Bench(database, service_settings)
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    assert runner().serve() == service_settings.max_attempts
    view = bench.analyses.get(analysis_id)
    assert view.status == "failed"
    assert view.reason is not None
    assert SNAPSHOT.digest in view.reason


def test_a_fault_of_ours_is_told_without_its_values(
    database: Database, service_settings: Settings, runner: Callable[..., Runner]
) -> None:
    bench = Bench(database, service_settings)
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    with database.unit_of_work() as uow:
        uow.session.execute(update(AnalysisRow).values(options={"a secret": "of the database"}))
    runner().serve()
    with database.reading() as session:
        row = session.get_one(AnalysisRow, analysis_id)
        assert row.status == "failed"
        assert row.reason == "an internal error (ValidationError), described in the log of its worker"


def test_a_cancelled_run_is_stopped_in_its_sandbox(
    database: Database, service_settings: Settings, submit: Callable[[str], str], runner: Callable[..., Runner]
) -> None:
    analysis_id = submit(SLOW)
    bench = Bench(database, service_settings)
    working = runner()
    serving = threading.Thread(target=working.serve)
    with capture_logs() as events:
        serving.start()
        eventually(lambda: bool(running_probes(database)), "the target is being run")
        bench.analyses.cancel(analysis_id)
        serving.join()
    assert [event["cause"] for event in events if event["event"] == "run_abandoned"] == ["cancelled"]
    assert bench.status(analysis_id) == "cancelled"


def test_a_cancelled_fetch_is_stopped_and_leaves_nothing_behind(
    database: Database,
    service_settings: Settings,
    runner: Callable[..., Runner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as place, serve(Path(root)) as server:
        Path(place).chmod(0o755)  # git's own uid works in there
        monkeypatch.setattr(tempfile, "tempdir", place)
        server.stalled.add("tarpit.git")
        trusting = {"git_trusted_networks": (IPv4Network("127.0.0.0/8"),), "git_ca_file": server.authority}
        bench = Bench(database, service_settings.model_copy(update=trusting))
        analysis_id = bench.analyses.submit(GitSource(server.url("tarpit.git"))).analysis_id
        working = runner(**trusting, git_wall=timedelta(hours=1))
        serving = threading.Thread(target=working.serve)
        with capture_logs() as events:
            serving.start()
            eventually(lambda: bool(server.requests), "git asks the server")
            bench.analyses.cancel(analysis_id)
            serving.join()
        assert list(Path(place).iterdir()) == []
    assert [event["event"] for event in events if event["event"].startswith("fetch")] == ["fetch_abandoned"]
    assert bench.status(analysis_id) == "cancelled"
    assert not service_settings.snapshot_dir.exists()


@pytest.mark.parametrize("url", ["https://localhost/team/models.git", "https://no-such-host.invalid/team/models.git"])
def test_a_source_that_may_not_be_fetched_fails_with_the_reason(
    database: Database, service_settings: Settings, runner: Callable[..., Runner], url: str
) -> None:
    bench = Bench(database, service_settings)
    analysis_id = bench.analyses.submit(GitSource(url)).analysis_id
    assert runner().serve() == 1
    view = bench.analyses.get(analysis_id)
    assert view.status == "failed"
    assert view.reason is not None
    assert url.split("/")[2] in view.reason


def test_no_queue_keeps_another_waiting(
    database: Database, service_settings: Settings, runner: Callable[..., Runner]
) -> None:
    bench = Bench(database, service_settings).with_settings(gpu_classes=("sim",))
    bench.submit_and_read(targets=4)
    working = runner(target_batch=1)
    assert {working.take()[0].queue for _ in range(2)} == {"cpu", "gpu.sim"}
    bench.analyses.submit(GitSource("https://example.org/team/models.git"))
    assert working.take()[0].queue == "control"
    assert {working.take()[0].queue for _ in range(2)} == {"cpu", "gpu.sim"}


def test_a_worker_reports_in_and_says_goodbye(
    database: Database, service_settings: Settings, runner: Callable[..., Runner]
) -> None:
    working = runner()

    def known() -> list[str]:
        with database.reading() as session:
            return [row.id for row in repository.live_workers(session, service_settings.heartbeat * 3)]

    eventually(lambda: known() == [working.id], "the worker reports in")
    working.stop()
    working.join()
    assert known() == []
    assert working.serve() == 0


def test_a_worker_process_never_imports_torch() -> None:
    code = "import sys, worker.celery_app, worker.__main__; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"GRADPROOF_LEASE": "soon"}, 2, "GRADPROOF_LEASE"),
        ({"GRADPROOF_DATABASE_URL": "mysql://host/db"}, 3, "SQLite and PostgreSQL"),
        ({}, 3, "gradproof db upgrade"),
    ],
)
def test_a_worker_that_can_not_start_says_why_in_one_line(
    tmp_path: Path, variables: dict[str, str], code: int, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker", "cpu"],
        env={"PATH": os.environ["PATH"], "GRADPROOF_DATA_DIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
