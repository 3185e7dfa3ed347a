"""A sandbox sees the device files of the GPU that its worker was given, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.devices import cuda_device_nodes


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null", "nvidia-caps"):
        (tmp_path / name).touch()
    return tmp_path


def test_all_gpus_and_the_driver_are_seen_without_a_limit(devices: Path) -> None:
    names = [Path(node).name for node in cuda_device_nodes(devices, {})]
    assert names == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]


def test_only_the_assigned_gpu_is_seen(devices: Path) -> None:
    names = [Path(node).name for node in cuda_device_nodes(devices, {"CUDA_VISIBLE_DEVICES": "1"})]
    assert names == ["nvidia1", "nvidiactl", "nvidia-uvm"]


def test_a_machine_without_a_gpu_has_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert cuda_device_nodes(tmp_path, {}) == ()
