"""A GPU for one run on this machine, without a worker or a database: what `gradproof check --device cuda` takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.settings import Settings
from worker.devices.errors import DeviceBusyError, InventoryError
from worker.devices.inventory import Gpu, read_inventory, visible
from worker.devices.lease import holder, lock_directory, try_lock


@contextmanager
def borrowed(settings: Settings) -> Iterator[Gpu | None]:
    """A GPU that nobody else of this machine has, for as long as the block lasts.

    None where there is none, or where nobody can say: the run then says itself whether it sees one. Raises
    `DeviceBusyError` if there are some and none can be had.
    """
    try:
        gpus = visible(read_inventory(settings.nvidia_smi))
    except InventoryError:
        gpus = ()
    locks = lock_directory(settings.device_locks)
    reasons = []
    for gpu in gpus:
        lock = None if gpu.unusable else try_lock(gpu.uuid, locks)
        if lock is None:
            held = gpu.unusable or f"held by process {holder(gpu.uuid, locks) or 'unknown'}"
            reasons.append(f"cuda:{gpu.index} ({gpu.uuid}): {held}")
            continue
        try:
            yield gpu
        finally:
            lock.release()
        return
    if reasons:
        raise DeviceBusyError(f"no CUDA device is free: {'; '.join(reasons)}")
    yield None
