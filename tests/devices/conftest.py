"""A made-up driver, and workers' duties over it on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.database import Database
from services.jobs.service import DeviceLeases
from services.settings import Settings
from tests.drivers import Driver
from worker.devices.duty import DeviceDuty


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver")


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Serve = Callable[..., DeviceDuty]


@pytest.fixture
def serve(
    database: Database, service_settings: Settings, driver: Driver, clock: Clock, tmp_path: Path
) -> Iterator[Serve]:
    """`serve("worker-1", asked=…, container=…)`: the duty of a worker that has looked once; each container has files
    of its own."""
    opened: list[DeviceDuty] = []

    def make(name: str, asked: str | None = None, container: str = "host") -> DeviceDuty:
        settings = service_settings.model_copy(
            update={"nvidia_smi": driver.command, "device_locks": tmp_path / "locks" / container}
        )
        duty = DeviceDuty(settings, DeviceLeases(database, settings, name), asked, patience_s=0.0, clock=clock)
        opened.append(duty)
        duty.look()
        return duty

    yield make
    for duty in opened:
        duty.close()
