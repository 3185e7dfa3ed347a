"""What a sandbox sees of the machine's GPUs: its own, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.support import compare
from worker.devices import Gpu, read_inventory
from worker.devices.lease import holder, lock_directory
from worker.devices.leftovers import left_over

pytestmark = pytest.mark.gpu

# It computes only where it sees exactly the device that was lent to it: a verdict of `pass` says that it did.
LOOKS_AROUND = """
import os
import re

import torch
from torch import nn


class LooksAround(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            nodes = [name for name in os.listdir("/dev") if re.fullmatch("nvidia[0-9]+", name)]
            if len(nodes) != 1 or torch.cuda.device_count() != 1:
                raise RuntimeError(f"{nodes} and {torch.cuda.device_count()} devices are visible")
            if not os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-"):
                raise RuntimeError("the device is not named by its UUID")
            if os.path.exists("/run/lock"):
                raise RuntimeError("the locks of devices are in reach")
        return torch.tanh(x)
""".replace("\\\\\\\\", "\\\\")

HOSTILE = """
import torch
from torch import nn


class TakesAll(nn.Module):
    kept = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)
            for _ in range(4):
                self.kept.append(torch.empty(2**30, dtype=torch.uint8, device=x.device))
        return torch.tanh(x)
"""


def test_code_sees_its_own_device_and_no_other(tmp_path: Path) -> None:
    check = compare(LOOKS_AROUND, tmp_path)
    assert (check.verdict, check.device) == ("pass", "cuda"), check.summary


def test_the_device_is_given_back_after_a_run(tmp_path: Path, gpus: tuple[Gpu, ...]) -> None:
    compare(LOOKS_AROUND, tmp_path)
    assert [holder(gpu.uuid, lock_directory(None)) for gpu in gpus] == [None] * len(gpus)


def test_code_that_lifts_its_bound_of_memory_leaves_none_of_it_behind(tmp_path: Path, gpus: tuple[Gpu, ...]) -> None:
    check = compare(HOSTILE, tmp_path, device_memory=2**30)
    assert check.verdict in ("pass", "error"), check.summary
    for before in gpus:

        def look(uuid: str = before.uuid) -> Gpu:
            return next(gpu for gpu in read_inventory("nvidia-smi") if gpu.uuid == uuid)

        assert left_over(look, before) == ""
