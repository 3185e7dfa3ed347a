"""Which device files a sandbox must see so that CUDA works inside.

Nothing here talks to a driver: files are listed, the probe asserts that CUDA is really used. Never bound for anything
but a job that asks for a device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# The control files that every process with a CUDA context opens (service facts 5.5).
_SHARED: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_GPU: Final = re.compile(r"nvidia\d+")


def cuda_device_nodes(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The files of the GPUs that this worker may use, and of the driver; empty without any GPU.

    `CUDA_VISIBLE_DEVICES`, when it lists indices, limits the GPUs: a worker is given one of them.
    """
    gpus = sorted(entry.name for entry in devices.iterdir() if _GPU.fullmatch(entry.name))
    visible = [index.strip() for index in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if index.strip()]
    if visible and all(index.isdecimal() for index in visible):
        gpus = [name for name in gpus if name.removeprefix("nvidia") in visible]
    if not gpus:
        return ()
    return tuple(str(devices / name) for name in (*gpus, *_SHARED) if (devices / name).exists())
