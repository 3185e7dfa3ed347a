"""What the driver says of its GPUs is read as it is, and nothing is made up where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers import FIRST, SECOND, Driver, gpu
from worker.devices import InventoryError, NoSuchDeviceError, chosen, driver_libraries, read_inventory, visible
from worker.devices.sandboxing import device_environment, device_nodes


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver")


def test_gpus_are_told_with_their_memory_and_the_processes_that_compute(driver: Driver) -> None:
    drawing = (7, "G", "/usr/lib/xorg/Xorg")
    driver.lists(gpu(FIRST, used=600, processes=[drawing, (42, "C", "python")]), gpu(SECOND, 3))
    first, second = read_inventory(driver.command)
    assert (first.uuid, first.index, first.minor, first.name) == (FIRST, 0, 0, "NVIDIA H200")
    assert (first.memory, first.used) == (143771 * 2**20, 600 * 2**20)
    assert [(process.pid, process.name) for process in first.processes] == [(42, "python")]
    assert (second.index, second.minor, second.processes, second.unusable) == (1, 3, (), "")


def test_a_machine_without_gpus_has_none(driver: Driver) -> None:
    assert read_inventory(driver.command) == ()


def test_slices_are_not_taken_for_whole_gpus(driver: Driver) -> None:
    driver.lists(gpu(FIRST, mig="Enabled"))
    (only,) = read_inventory(driver.command)
    assert "MIG" in only.unusable


def test_a_driver_that_is_not_there_fails_hangs_or_talks_nonsense_is_told_apart(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="is not installed"):
        read_inventory(str(tmp_path / "nowhere"))
    driver.lists("<gpu><uuid>../../etc/passwd</uuid></gpu>")
    with pytest.raises(InventoryError, match="without its UUID"):
        read_inventory(driver.command)
    driver.lists(gpu(FIRST).replace("<used>1 MiB</used>", "<used>[N/A]</used>", 1))
    with pytest.raises(InventoryError, match="fb_memory_usage/used"):
        read_inventory(driver.command)
    driver.lists("<gpu")
    with pytest.raises(InventoryError, match="no XML"):
        read_inventory(driver.command)
    driver.fails()
    with pytest.raises(InventoryError, match=r"failed with 15: .*GPU is lost"):
        read_inventory(driver.command)
    driver.hangs()
    with pytest.raises(InventoryError, match=r"no answer within 0\.1 s"):
        read_inventory(driver.command, answer_s=0.1)


def test_a_device_is_named_by_its_number_or_its_uuid_and_a_wrong_name_is_refused(driver: Driver) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 3))
    gpus = read_inventory(driver.command)
    for asked in ("cuda:1", "1", SECOND, "GPU-bbbb"):
        assert [found.uuid for found in chosen(gpus, asked)] == [SECOND], asked
    assert chosen(gpus, None) == gpus
    for asked in ("cuda:2", "GPU-", "3", "cpu"):
        with pytest.raises(NoSuchDeviceError, match=SECOND):
            chosen(gpus, asked)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(None, [FIRST, SECOND]), ("1", [SECOND]), (f"{SECOND},0", [FIRST, SECOND]), ("", []), ("-1", []), ("7", [])],
)
def test_what_the_environment_withholds_is_not_used(driver: Driver, listed: str | None, expected: list[str]) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 3))
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert [found.uuid for found in visible(read_inventory(driver.command), environment)] == expected


def test_a_sandbox_sees_the_files_of_its_own_gpu_and_no_other(driver: Driver, tmp_path: Path) -> None:
    files = tmp_path / "dev"
    files.mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null", "nvidia-caps"):
        (files / name).touch()
    driver.lists(gpu(FIRST), gpu(SECOND, 3))
    _, second = read_inventory(driver.command)
    assert [Path(node).name for node in second.nodes(files)] == ["nvidia3", "nvidiactl", "nvidia-uvm"]
    assert device_environment("cuda", second)["CUDA_VISIBLE_DEVICES"] == SECOND


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_without_cuda_a_sandbox_is_told_and_shown_nothing(driver: Driver, device: str) -> None:
    driver.lists(gpu(FIRST))
    (only,) = read_inventory(driver.command)
    assert device_nodes(device, only) == ()
    assert device_environment(device, only) == {}


def test_the_driver_s_library_is_found_where_a_container_put_it_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    assert driver_libraries({"LD_LIBRARY_PATH": f"{tmp_path}:/usr/lib/nowhere:"}) == ""
