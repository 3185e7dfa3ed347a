"""Whether a GPU is as empty after a batch as it was before: what is left over would be the next job's trouble.

A process that outlived its sandbox holds memory and computes; memory that no process holds is the driver's own trouble.
Both are told as a sentence, which takes the device out of service (`worker.devices.duty`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from worker.devices.errors import InventoryError
from worker.devices.inventory import Gpu

# What the driver keeps for itself moves by some MiB from look to look; a CUDA context alone takes more than 200.
SLACK: Final = 128 * 2**20
# More than a display server takes, which may share the device; a device of a server that computes nothing uses a few
# MiB. Without this bound, work in containers whose processes can't be seen would pass for an empty device.
IDLE: Final = 2 * 2**30
# Destroying a context and giving 100 GiB back takes the driver up to some seconds after the process is gone.
PATIENCE_S: Final = 10.0
_EVERY_S: Final = 0.5
_MIB: Final = 2**20

Look = Callable[[], Gpu]


def in_use(gpu: Gpu) -> str:
    """Why a device that nobody has been given yet is not free; empty if it is."""
    if gpu.processes:
        return f"in use by {_named(gpu)}, which Gradproof did not start"
    if gpu.used > IDLE:
        return f"{gpu.used // _MIB} MiB of it are in use by processes that can't be seen from here"
    return ""


def left_over(look: Look, before: Gpu, *, patience_s: float = PATIENCE_S) -> str:
    """What a batch has left on the device, given some time to go; empty if it is as it was `before`.

    A device that can't be looked at any more has not been left in order either.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            said = remains(look(), before)
        except InventoryError as error:
            return f"after a job, {error.message}"
        if not said or time.monotonic() >= until:
            return said
        time.sleep(_EVERY_S)


def remains(now: Gpu, before: Gpu) -> str:
    """What is on the device `now` that was not there `before`; empty if nothing is."""
    if now.processes:
        return f"after a job, {_named(now)} is still on the device"
    kept = now.used - before.used
    if kept > SLACK:
        return f"after a job, {kept // _MIB} MiB of its memory were not given back"
    return ""


def _named(gpu: Gpu) -> str:
    first = gpu.processes[0]
    more = f" and {len(gpu.processes) - 1} more" if len(gpu.processes) > 1 else ""
    return f"process {first.pid} ({first.name}){more}"
