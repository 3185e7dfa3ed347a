"""Plain values about jobs. This module must not know the database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the tables, and with them SQLAlchemy, are not needed to know the names of queues
    from services.jobs.models import JobKind

CONTROL_QUEUE = "control"
CPU_QUEUE = "cpu"
CPU_CLASS = "cpu"
SIMULATED_CLASS = "sim"
# A job that waited in vain for a worker with its device: it is run on the CPU, and is no comparison of devices.
ABSENT_CLASS = "absent"
NO_DEVICE = "no worker with a CUDA device"


def gpu_queue(device_class: str) -> str:
    """The queue of a class of GPUs."""
    return f"gpu.{device_class}"


def device_name(device_class: str) -> Literal["cpu", "cuda", "sim"]:
    """What the probe calls a device of this class: `cpu`, `cuda`, or `sim`, the simulated one that tests use."""
    if device_class in (CPU_CLASS, ABSENT_CLASS):
        return "cpu"
    return "sim" if device_class == SIMULATED_CLASS else "cuda"


def needs_a_device(queue: str) -> bool:
    """Whether a worker must have a real GPU for what waits in this queue."""
    return queue.startswith(gpu_queue("")) and queue != gpu_queue(SIMULATED_CLASS)


class DeviceState(StrEnum):
    """How a worker stands with the GPU that it needs: it has it, it has none yet, or what it has is not fit."""

    SERVING = "serving"
    WAITING = "waiting"
    OUT_OF_SERVICE = "out of service"


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """The GPU of a worker: `id` is its UUID, None while the worker has none. `detail` says why it doesn't serve."""

    id: str | None
    name: str | None
    state: DeviceState
    detail: str


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """Who has a GPU, or would like one: a worker of `host` for its `queues`, and how many jobs it runs just now."""

    device: WorkerDevice
    worker: str
    host: str
    pid: int
    queues: tuple[str, ...]
    running: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed job. `owner` and `attempt` together are the fencing token that every write has to show."""

    job_id: str
    analysis_id: str
    kind: JobKind
    queue: str
    target_id: str | None
    device_class: str
    checks: tuple[str, ...]
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How much work waits in a queue, for how long the oldest of it, and how much of it is being done."""

    queue: str
    waiting: int
    running: int
    oldest_s: float | None
