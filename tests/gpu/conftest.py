"""What every test on a real GPU needs: a GPU. Without one they fail: nobody asked for them by accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

from worker.devices import Gpu, InventoryError, read_inventory, visible

_ASK_TORCH = "import torch; print(torch.version.cuda, torch.cuda.device_count())"


@pytest.fixture(scope="session")
def gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine that may be used, as they were before the first test."""
    try:
        found = tuple(gpu for gpu in visible(read_inventory("nvidia-smi")) if not gpu.unusable)
    except InventoryError as error:
        pytest.fail(f"`make test-gpu` needs a machine with a CUDA device: {error.message}", pytrace=False)
    if not found:
        pytest.fail("`make test-gpu` needs a machine with a CUDA device: nvidia-smi lists none", pytrace=False)
    # In a process of its own: what a context takes here would be found by the checks for what is left over.
    said = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=True).stdout.split()
    if said[0] == "None" or said[1] == "0":
        pytest.fail(
            f"torch is built for CUDA {said[0]} and sees {said[1]} devices: install one for this driver", pytrace=False
        )
    return found


@pytest.fixture(autouse=True)
def _needs_a_gpu(gpus: tuple[Gpu, ...]) -> None:
    """Asks for it before anything else."""
