"""Plain values about jobs. This module must not know the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the tables, and with them SQLAlchemy, are not needed to know the names of queues
    from services.jobs.models import JobKind

CONTROL_QUEUE = "control"
CPU_QUEUE = "cpu"
CPU_CLASS = "cpu"
SIMULATED_CLASS = "sim"


def gpu_queue(device_class: str) -> str:
    """The queue of a class of GPUs."""
    return f"gpu.{device_class}"


def device_name(device_class: str) -> Literal["cpu", "cuda", "sim"]:
    """What the probe calls a device of this class: `cpu`, `cuda`, or `sim`, the simulated one that tests use."""
    if device_class == CPU_CLASS:
        return "cpu"
    return "sim" if device_class == SIMULATED_CLASS else "cuda"


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
