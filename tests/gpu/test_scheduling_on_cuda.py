"""Workers on a real GPU: queue, lease, sandbox, verdict, and the look at what is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions
from services.analyses.service import AnalysisService
from services.database import Database
from services.jobs import repository
from services.jobs.doorbell import Doorbell
from services.jobs.model import DeviceState, HeldDevice
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from tests.jobs.support import acting
from tests.recovery.support import eventually, worker_process
from worker.devices import Gpu

pytestmark = pytest.mark.gpu

QUEUE = "gpu.cuda"
SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim: int = 16):
        super().__init__()
        self.up = nn.Linear(dim, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x))
"""
# Somebody else's program: it takes 4 GiB of the device, says so, and keeps them until its standard input ends.
STRANGER = """
import sys, torch
kept = torch.zeros(4 * 2**30, dtype=torch.uint8, device="cuda")
print("there", flush=True)
sys.stdin.read()
"""


class Service:
    """The submitting side of a service whose only class of devices is `cuda`."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings = settings
        self.doorbell = Doorbell.open(settings)
        self.database = Database.open(settings, self.doorbell.ring)
        self.analyses = acting(AnalysisService(self.database, settings))
        directory.mkdir()
        (directory / "layers.py").write_text(SOURCE, encoding="utf-8")
        with read_directory(directory) as tree:
            self._snapshot = SnapshotStore(settings.snapshot_dir).put(tree)

    def submit(self) -> str:
        options = AnalysisOptions(checks=("device_compare",), reuse=False)
        return self.analyses.submit(self._snapshot, options).analysis_id

    def devices(self) -> list[HeldDevice]:
        with self.database.reading() as session:
            return list(repository.devices(session, self.settings.heartbeat * 6))

    def states(self) -> list[DeviceState]:
        return sorted(held.device.state for held in self.devices())

    def close(self) -> None:
        self.database.close()
        self.doorbell.close()


@pytest.fixture
def service(embedded_settings: Settings, tmp_path: Path) -> Iterator[Service]:
    opened = Service(embedded_settings.model_copy(update={"gpu_classes": ("cuda",)}), tmp_path / "repository")
    yield opened
    opened.close()


@contextmanager
def stranger(gpu: Gpu) -> Iterator[None]:
    """Somebody else's program on the device."""
    process = subprocess.Popen(
        [sys.executable, "-c", STRANGER],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "there"
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_submission_is_compared_on_the_device_and_leaves_it_empty(service: Service, tmp_path: Path) -> None:
    with (
        worker_process(service.settings, tmp_path / "cpu.log"),
        worker_process(service.settings, tmp_path / "gpu.log", QUEUE),
    ):
        for _ in range(2):
            analysis_id = service.submit()
            eventually(lambda analysis_id=analysis_id: service.analyses.get(analysis_id).ended, "it is analysed")
            report = service.analyses.report(analysis_id)
            (check,) = report.targets[0].checks
            assert (check.verdict, check.device) == ("pass", "cuda"), check.summary
            assert any(name.startswith("cuda:0") for name in report.tool.devices)
        # The second one was run, so after the first one the device was found empty; and so it is now.
        eventually(lambda: [held.running for held in service.devices()] == [0], "the batch has ended")
        assert service.states() == [DeviceState.SERVING], service.devices()


def test_there_is_one_worker_for_each_device_and_the_next_one_takes_over_from_a_killed_one(
    service: Service, gpus: tuple[Gpu, ...], tmp_path: Path
) -> None:
    only = gpus[0]

    def pids() -> list[int]:
        return [held.pid for held in service.devices() if held.device.state is DeviceState.SERVING]

    with (
        worker_process(service.settings, tmp_path / "one.log", QUEUE, only.uuid) as one,
        worker_process(service.settings, tmp_path / "two.log", QUEUE, only.uuid) as two,
    ):
        eventually(lambda: service.states() == [DeviceState.SERVING, DeviceState.WAITING], "one of them has it")
        first, second = (one, two) if pids() == [one.pid] else (two, one)
        first.kill()
        first.wait()
        eventually(lambda: pids() == [second.pid], "the other one takes over")


def test_a_device_with_a_stranger_on_it_is_out_of_service_until_that_has_ended(
    service: Service, gpus: tuple[Gpu, ...], tmp_path: Path
) -> None:
    with worker_process(service.settings, tmp_path / "gpu.log", QUEUE, gpus[0].uuid):
        eventually(lambda: service.states() == [DeviceState.SERVING], "the worker serves")
    with stranger(gpus[0]), worker_process(service.settings, tmp_path / "gpu.log", QUEUE, gpus[0].uuid):
        eventually(lambda: service.states() == [DeviceState.OUT_OF_SERVICE], "it is found in use")
        assert "in use" in service.devices()[0].device.detail
    with worker_process(service.settings, tmp_path / "gpu.log", QUEUE, gpus[0].uuid):
        eventually(lambda: service.states() == [DeviceState.SERVING], "it is free again")
