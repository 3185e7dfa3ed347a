"""A real server in a thread, and a worker's part done by hand.

The server is uvicorn on a port of its own, so that streams, refused bodies and broken connections are what they are in
production. `Workshop` calls the very use cases that a worker calls, with results made up by the test: nothing is run.
"""

from __future__ import annotations

import io
import socket
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import uvicorn

from api.app import create_app
from services.accounts import TokenService
from services.analyses.reading import read_snapshot
from services.analyses.reconciler import Reconciler
from services.analyses.work import WorkResults
from services.database import Database
from services.database.base import utc_now
from services.jobs import repository
from services.jobs.models import JobKind, JobState
from services.jobs.service import JobService
from services.reports.document import CheckInfo, Harness
from services.settings import Settings
from services.snapshots import SnapshotStore

PATIENCE_S = 60.0

MODULE = """\
import torch


class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()
"""


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """A .tar.gz of these files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def upload(
    files: Mapping[str, str | bytes] | None = None, name: str = "repository.tar.gz"
) -> dict[str, tuple[str, bytes]]:
    """The `files` argument of a POST that uploads these files."""
    return {"archive": (name, packed(files or {"pkg/__init__.py": "", "pkg/a.py": MODULE}))}


def token(settings: Settings, *scopes: str) -> str:
    """A fresh token."""
    database = Database.open(settings, lambda _queue: None)
    try:
        return TokenService(database, settings).create("test", scopes or ("submit",)).text
    finally:
        database.close()


class RunningServer:
    """The application behind uvicorn, on a free port of the loopback."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.app = create_app(settings)
        # Named by its protocol, or else asyncio leaves the delay on that costs 40 ms an answer.
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(self.app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        self._socket.close()


class Workshop:
    """Does what a worker does, as far as rows are concerned."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = Database.open(settings, lambda _queue: None)
        self._jobs = JobService(self._database, settings)
        self._results = WorkResults(self._database, settings)
        self._store = SnapshotStore(settings.snapshot_dir)
        self.reconciler = Reconciler(self._database, settings, "test")

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def read(self) -> None:
        """Read every snapshot that waits."""
        while claims := self._jobs.claim("cpu", "test", _nothing):
            (claim,) = claims
            assert claim.kind is JobKind.STATIC, "a probe waits: call `probe`"
            work = self._results.static_work(claim)
            self._results.read(claim, read_snapshot(self._store.path(work.snapshot_digest), work.options))
            if self._probes_wait():
                return

    def probe(self, *results: CheckInfo, harness: Harness | None = None) -> None:
        """Say of every target that waits that these were its results; without any, that its inputs were unsolved."""
        while claims := self._jobs.claim("cpu", "test", _nothing):
            self._results.ran(claims[0], torch="2.13.0", devices=["cpu"], sandbox="bwrap-user", import_torch=1)
            for claim in claims:
                assert claim.kind is JobKind.PROBE
                if results:
                    self._results.harness(claim, harness or HARNESS)
                    for result in results:
                        self._results.check(claim, result)
                else:
                    self._results.not_run(claim, "inputs unsolved", "no shape fits")
                self._results.probed(claim)

    def fail(self, queue: str, reason: str) -> None:
        """End what waits in a queue without a result."""
        for claim in self._jobs.claim(queue, "test", _nothing):
            self._results.ended(claim, JobState.FAILED, reason)

    def report_device(self, device: str, state: str, detail: str) -> None:
        """A worker for GPUs reports in, with this device."""
        told = {"id": device, "name": "NVIDIA H200", "state": state, "detail": detail}
        row = {
            "id": "gpu-worker", "host": "here", "pid": 1, "version": "0", "queues": ["gpu.cuda"], "devices": ["cuda"],
            "device": told, "running": 0, "started_at": utc_now(),
        }  # fmt: skip
        with self._database.unit_of_work() as uow:
            repository.report_worker(uow.session, row)

    def _probes_wait(self) -> bool:
        with self._database.reading() as session:
            return any(kind == JobKind.PROBE and state == JobState.QUEUED for kind, state in repository.totals(session))


HARNESS = Harness(
    source="synthesised", grade="C", constructor="Norm()", inputs=["float64[2, 8]"], provenance="the signature"
)


def _nothing(_session: object, _jobs: Sequence[str] | object) -> None:
    """No attempt is ever repeated here, so that there is nothing to forget."""
