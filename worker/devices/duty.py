"""The one GPU of a worker process: taken for as long as the worker lives, lent to one batch at a time.

A worker that has none yet, or whose device is not fit, takes no jobs that need one: it says why and looks again. Two
locks keep others away: one of the machine (`worker.devices.lease`) and one in the database, for workers in containers
that share no files. Called by the threads of a worker; knows neither jobs nor queues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from services.jobs.model import DeviceState, WorkerDevice
from services.settings import Settings
from worker.devices.errors import InventoryError, NoSuchDeviceError
from worker.devices.inventory import Gpu, chosen, read_inventory, visible
from worker.devices.lease import DeviceLock, holder, lock_directory, try_lock
from worker.devices.leftovers import PATIENCE_S, in_use, left_over, remains

log = structlog.get_logger(__name__)

# nvidia-smi costs up to a second: a device that was not fit is looked at again at this pace, not with every heartbeat.
AGAIN_S: Final = 15.0
_END_S: Final = 30.0


class Registry(Protocol):
    """Where workers of all machines agree on who has a device: leases in the database."""

    def take(self, uuid: str) -> bool:
        """Take or renew the lease of a device; False if somebody else has it."""

    def drop(self, uuid: str) -> None:
        """Give it up."""


@dataclass(slots=True)
class _Taken:
    gpu: Gpu
    lock: DeviceLock
    renewed: float
    empty: Gpu | None = None  # how it looked when nobody used it


class DeviceDuty:
    """See the module's docstring. `asked` names the device; None: any that is free.

    `renew` and `look` are each called by one thread, now and then; `lend` and `hand_back` by any that runs a batch.
    Errors of the database come through, and leave everything as it was.
    """

    def __init__(
        self, settings: Settings, registry: Registry, asked: str | None = None, *,
        patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._registry = registry
        self._asked = asked
        self._patience_s = patience_s
        self._clock = clock
        self._locks = lock_directory(settings.device_locks)
        self._changed = threading.Condition()
        self._taken: _Taken | None = None
        self._lent: _Taken | None = None
        self._closed = False
        self._condemned = False
        self._told = WorkerDevice(None, None, DeviceState.WAITING, "it has not been looked for yet")

    @property
    def told(self) -> WorkerDevice:
        """What others may know about it."""
        with self._changed:
            return self._told

    def renew(self) -> None:
        """Keep the device, if there is one. With every heartbeat."""
        with self._changed:
            taken = self._taken
            if taken is None or self._closed:
                return
            if self._registry.take(taken.gpu.uuid):
                taken.renewed = self._clock()
                return
            # Ours ran out while the database was away, and another worker, which does not share our files, was quicker.
            self._taken = None
            self._say(DeviceState.WAITING, f"another worker has taken {taken.gpu.uuid} over")
            if self._lent is None:
                taken.lock.release()

    def look(self) -> None:
        """Look for a device, or whether the one that was not fit is by now. Takes seconds where the driver is slow."""
        with self._changed:
            if self._closed or self._condemned or self._lent is not None or self._told.state is DeviceState.SERVING:
                return
            taken = self._taken
        try:
            gpus = read_inventory(self._settings.nvidia_smi)
            if taken is None:
                self._take(chosen(visible(gpus), self._asked))
            else:
                self._examine(taken, _again(taken.gpu, gpus))
        except (InventoryError, NoSuchDeviceError) as error:
            with self._changed:
                self._say(DeviceState.WAITING if taken is None else DeviceState.OUT_OF_SERVICE, error.message)

    def lend(self) -> Gpu | None:
        """The device, for one batch; None if it is lent already, not fit, or not surely ours any more.

        Whoever gets it calls `hand_back`.
        """
        with self._changed:
            taken = self._taken
            if self._closed or self._lent is not None or taken is None or self._told.state is not DeviceState.SERVING:
                return None
            if self._clock() - taken.renewed > self._settings.lease.total_seconds():
                return None  # the database was away for so long that another worker may have the device by now
            self._lent = taken
            return taken.gpu

    def hand_back(self, *, used: bool = True) -> None:
        """The batch has ended: its device is looked at before anybody gets it again, if it was used."""
        taken = self._lent
        assert taken is not None
        assert taken.empty is not None
        said = ""
        if used:
            said = left_over(
                lambda: _again(taken.gpu, read_inventory(self._settings.nvidia_smi)),
                taken.empty,
                patience_s=self._patience_s,
            )
        with self._changed:
            self._lent = None
            if self._taken is not taken:
                taken.lock.release()
            elif said and not self._condemned:
                self._say(DeviceState.OUT_OF_SERVICE, said)
            self._changed.notify_all()

    def condemn(self, reason: str) -> None:
        """Out of service until the worker is started anew: what is wrong can't be seen by looking from outside."""
        with self._changed:
            self._condemned = True
            self._say(DeviceState.OUT_OF_SERVICE, reason)

    def close(self) -> None:
        """Let others have it, as soon as no batch uses it any more. A batch that does not end keeps it to the end."""
        with self._changed:
            self._closed = True
            if not self._changed.wait_for(lambda: self._lent is None, _END_S):
                return
            taken, self._taken = self._taken, None
        if taken is not None:
            try:
                self._registry.drop(taken.gpu.uuid)
            finally:
                taken.lock.release()

    def _take(self, gpus: tuple[Gpu, ...]) -> None:
        reasons = []
        # What somebody else uses is taken last: it can't serve before that has ended.
        for gpu in sorted(gpus, key=lambda gpu: bool(in_use(gpu))):
            reason = gpu.unusable or self._take_one(gpu)
            if not reason:
                return
            reasons.append(f"{gpu.uuid}: {reason}")
        with self._changed:
            self._say(DeviceState.WAITING, "; ".join(reasons) or "there is no CUDA device on this machine")

    def _take_one(self, gpu: Gpu) -> str:
        """Why this device can't be had; empty if it is ours now."""
        lock = try_lock(gpu.uuid, self._locks)
        if lock is None:
            return f"held by process {holder(gpu.uuid, self._locks) or 'unknown'} of this machine"
        try:
            if not self._registry.take(gpu.uuid):
                lock.release()
                return "held by a worker of another machine or container"
        except BaseException:
            lock.release()
            raise
        taken = _Taken(gpu, lock, self._clock())
        with self._changed:
            self._taken = taken
        self._examine(taken, gpu)
        return ""

    def _examine(self, taken: _Taken, now: Gpu) -> None:
        """Serve if the device is empty, or as empty as it was when it was taken."""
        said = in_use(now) if taken.empty is None else remains(now, taken.empty)
        with self._changed:
            if said:
                self._say(DeviceState.OUT_OF_SERVICE, said)
                return
            taken.empty = taken.empty or now
            if self._taken is taken:
                self._say(DeviceState.SERVING, "")

    def _say(self, state: DeviceState, detail: str) -> None:
        gpu = None if self._taken is None else self._taken.gpu
        told = WorkerDevice(None if gpu is None else gpu.uuid, None if gpu is None else gpu.name, state, detail)
        if told != self._told:
            write = log.info if state is DeviceState.SERVING else log.warning
            write("device", id=told.id, state=state.value, detail=detail)
        self._told = told


def _again(known: Gpu, gpus: tuple[Gpu, ...]) -> Gpu:
    for gpu in gpus:
        if gpu.uuid == known.uuid:
            return gpu
    raise InventoryError(f"nvidia-smi does not list {known.uuid} any more")
