"""What the recovery tests share: a tiny repository, a real worker process, and patient looking."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from services.analyses.model import AnalysisOptions, AnalysisView
from services.analyses.service import AnalysisService
from services.checks.models import CheckResultRow
from services.database import Database
from services.jobs import repository
from services.jobs.doorbell import Doorbell
from services.jobs.models import OWNED_STATES, JobKind, JobRow
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from services.snapshots.model import Snapshot
from tests.jobs.support import acting

# Far more than a busy machine needs: reaching it means that something is stuck.
PATIENCE_S = 120.0
TARGETS = 3

_FUNCTION = '''

class Square{number}(torch.autograd.Function):
    """x ** 2 + {number}"""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x + {number}

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output
'''


def write_repository(directory: Path, targets: int = TARGETS) -> Path:
    """A repository whose only module holds `targets` autograd Functions, all right."""
    directory.mkdir(parents=True)
    source = "import torch\n" + "".join(_FUNCTION.format(number=number) for number in range(targets))
    (directory / "squares.py").write_text(source, encoding="utf-8")
    return directory


def environment(settings: Settings) -> dict[str, str]:
    """What makes another process come to the same settings."""
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude={"secret_key"})
    variables = {
        f"GRADPROOF_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
    # What finding a GPU and its driver takes, where there is one.
    passed_on = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    return {
        "PATH": os.environ["PATH"],
        **passed_on,
        "GRADPROOF_SECRET_KEY": settings.secret_key.get_secret_value(),
        **variables,
    }


@contextmanager
def worker_process(
    settings: Settings, log: Path, queues: str = "control,cpu", *device: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A real worker, as an operator would start it; killed at the end if it still runs. Logs into the file `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", queues, *device],
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def eventually(look: Callable[[], object], what: str) -> None:
    """Look until the answer is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.05)


@dataclass
class Service:
    """The submitting side: what the API does, in this process."""

    settings: Settings
    repository: Path

    def __post_init__(self) -> None:
        self.doorbell = Doorbell.open(self.settings)
        self.database = Database.open(self.settings, self.doorbell.ring)
        self.analyses = acting(AnalysisService(self.database, self.settings))
        self.snapshot = self._store()

    def _store(self) -> Snapshot:
        with read_directory(self.repository) as tree:
            return SnapshotStore(self.settings.snapshot_dir).put(tree)

    def close(self) -> None:
        self.database.close()
        self.doorbell.close()

    def submit(self, *, static_only: bool = False) -> str:
        """Submit the repository for a gradcheck of every target."""
        options = AnalysisOptions(checks=("gradcheck",), static_only=static_only)
        return self.analyses.submit(self.snapshot, options).analysis_id

    def view(self, analysis_id: str) -> AnalysisView:
        return self.analyses.get(analysis_id)

    def jobs(self, analysis_id: str) -> list[JobRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(JobRow).where(JobRow.analysis_id == analysis_id)))

    def results(self, analysis_id: str) -> list[CheckResultRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(CheckResultRow).where(CheckResultRow.analysis_id == analysis_id)))

    def workers(self) -> list[int]:
        """The process ids of the workers that report in."""
        with self.database.reading() as session:
            return [row.pid for row in repository.live_workers(session, self.settings.heartbeat * 6)]

    def is_mid_run(self, analysis_id: str) -> bool:
        """Whether at least one target is done and at least one is being run."""
        probes = [job for job in self.jobs(analysis_id) if job.kind == JobKind.PROBE]
        return any(job.finished_at for job in probes) and any(job.state in OWNED_STATES for job in probes)

    def assert_everything_ran_once(self, analysis_id: str, targets: int = TARGETS) -> None:
        """Every job ended well, and each target has exactly one result."""
        view = self.view(analysis_id)
        assert (view.status, view.reason) == ("finished", None)
        jobs = self.jobs(analysis_id)
        assert sorted((job.kind, job.state) for job in jobs) == [
            *([("probe", "succeeded")] * targets),
            ("static", "succeeded"),
        ]
        results = self.results(analysis_id)
        assert len({result.target_id for result in results}) == targets
        assert [(result.check_name, result.verdict) for result in results] == [("gradcheck", "pass")] * targets


def kill_in_mid_run(worker: subprocess.Popen[bytes], service: Service, analysis_id: str) -> None:
    """SIGKILL the worker while it owns a job. It is stopped first, so that it can't end the job in between."""

    def stopped_while_it_owns_a_job() -> bool:
        assert worker.poll() is None, "the worker ended by itself"
        view = service.view(analysis_id)
        assert not view.ended, f"the analysis ended before it could be disturbed: {view.status} ({view.reason})"
        if not service.is_mid_run(analysis_id):
            return False
        worker.send_signal(signal.SIGSTOP)
        if service.is_mid_run(analysis_id):
            return True
        worker.send_signal(signal.SIGCONT)
        return False

    eventually(stopped_while_it_owns_a_job, "the worker is in mid-run")
    worker.kill()
    worker.wait()
