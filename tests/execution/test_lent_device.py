"""A sandbox is told of the one device that is lent to it, and of its bound of memory, for CUDA and for nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analyzer.findings import TargetDeclaration, TargetKind
from services.settings import Settings
from tests.drivers import FIRST, SECOND, Driver, gpu
from worker.devices import Gpu, read_inventory
from worker.execution import Batch, BatchJob, run_batch
from worker.execution.batch import Device
from worker.sandbox.model import Command, Limits, Mode, Outcome, ResultLine, Status

TARGET = TargetDeclaration(
    name="a:B", kind=TargetKind.MODULE, path="a.py", line=1, end_line=2, import_root="", module="a", qualname="B"
)


@dataclass
class Asked:
    """A launcher that runs nothing and remembers what it was asked for."""

    mode: Mode = Mode.USER
    commands: list[Command] = field(default_factory=list)

    def run(
        self,
        command: Command,
        limits: Limits,
        on_result: ResultLine,
        cancelled: Callable[[], bool],
        *rest: Any,
        **more: Any,
    ) -> Outcome:
        self.commands.append(command)
        return Outcome(Status.EXITED, self.mode, 0, None, 0.0, None, 0, "", "")


@pytest.fixture
def second(tmp_path: Path) -> Gpu:
    driver = Driver(tmp_path / "driver")
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    return read_inventory(driver.command)[1]


def asked(tmp_path: Path, device: Device, lent: Gpu | None) -> Command:
    batch = Batch(
        tmp_path, (BatchJob("j1", TARGET, ("device_compare",)),), Path(sys.executable), device=device, gpu=lent
    )
    launcher = Asked()
    settings = Settings(data_dir=tmp_path, device_memory=3 * 2**30)
    run_batch(batch, launcher=launcher, settings=settings, on_message=lambda _message: None, cancelled=lambda: False)
    (command,) = launcher.commands
    return command


def test_with_cuda_the_device_is_named_by_its_uuid_and_its_memory_bounded(tmp_path: Path, second: Gpu) -> None:
    command = asked(tmp_path, "cuda", second)
    assert command.environment["CUDA_VISIBLE_DEVICES"] == SECOND
    request = json.loads(command.request)
    assert (request["device"], request["device_memory"]) == ("cuda", 3 * 2**30)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_without_cuda_nothing_of_a_device_is_shown(tmp_path: Path, second: Gpu, device: Device) -> None:
    command = asked(tmp_path, device, second)
    assert "CUDA_VISIBLE_DEVICES" not in command.environment
    assert command.device_nodes == ()
    assert "device_memory" not in json.loads(command.request)
