"""`gradproof check --device cuda` takes a GPU that nobody else has, and gives it back however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.settings import Settings
from tests.drivers import FIRST, SECOND, Driver, gpu
from worker.devices import DeviceBusyError
from worker.devices.lease import holder, try_lock
from worker.devices.lending import borrowed


@pytest.fixture
def settings(driver: Driver, tmp_path: Path) -> Settings:
    return Settings(nvidia_smi=driver.command, device_locks=tmp_path / "locks", data_dir=tmp_path / "data")


def test_two_runs_get_two_devices_and_a_third_one_is_told_who_has_them(settings: Settings, driver: Driver) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    with borrowed(settings) as one, borrowed(settings) as two:
        assert one is not None
        assert two is not None
        assert (one.uuid, two.uuid) == (FIRST, SECOND)
        with pytest.raises(DeviceBusyError, match=r"cuda:0 .*held by process \d+; cuda:1"), borrowed(settings):
            pass
    assert [holder(uuid, settings.device_locks or Path()) for uuid in (FIRST, SECOND)] == [None, None]


def test_a_run_that_fails_gives_its_device_back(settings: Settings, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    with pytest.raises(RuntimeError, match="of the run"), borrowed(settings):
        raise RuntimeError("a fault of the run")
    assert settings.device_locks is not None
    lock = try_lock(FIRST, settings.device_locks)
    assert lock is not None
    lock.release()


def test_without_a_device_or_a_driver_there_is_none_and_no_error(settings: Settings, driver: Driver) -> None:
    with borrowed(settings) as nothing:
        assert nothing is None
    driver.fails()
    with borrowed(settings) as nothing:
        assert nothing is None


def test_slices_are_not_given_out(settings: Settings, driver: Driver) -> None:
    driver.lists(gpu(FIRST, mig="Enabled"))
    with pytest.raises(DeviceBusyError, match="MIG"), borrowed(settings):
        pass
