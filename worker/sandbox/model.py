"""What a sandbox is asked to do and what it answers: plain values, shared by every launcher.

A launcher is a class with `run(command, limits, on_result, cancelled) -> Outcome`. A fault of the submitted code
(crash, out of memory, time-out) is an `Outcome`, never an exception; only a sandbox that can't be set up raises
(`worker.sandbox.errors.SandboxUnavailableError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

REQUEST: Final = "/job/request.json"
RESULT_FD: Final = "GRADPROOF_RESULT_FD"
ARCHIVE_FD: Final = "GRADPROOF_ARCHIVE_FD"


class Mode(StrEnum):
    """How submitted code is confined."""

    USER = "bwrap-user"
    ROOT = "bwrap-root"
    OFF = "off"


class Status(StrEnum):
    """How a sandboxed run ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run; sizes in bytes, times in seconds."""

    wall_s: float = 1200.0
    memory: int = 4 * 2**30
    processes: int = 256
    cpus: float = 2.0
    tmp: int = 1 * 2**30
    job: int = 256 * 2**20
    shared_memory: int = 256 * 2**20
    output: int = 1 * 2**20
    result: int = 64 * 2**20
    result_line: int = 1 * 2**20


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: `argv` and `environment` as seen inside.

    `read_only` maps host paths to inside paths. `request` is made readable at `/job/request.json`. The results come
    as lines on the file descriptor whose number the launcher puts into `GRADPROOF_RESULT_FD`.
    `interpreter` is the Python whose prefix (and base prefix) must be visible inside at its own path.
    In mode OFF there is no inside: in `argv` and in the values of `environment`, a word that is an inside path (or
    begins with one and a slash) is replaced by the host's path, `/job` by a temporary directory.
    """

    interpreter: Path
    argv: tuple[str, ...]
    request: bytes
    read_only: Mapping[Path, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `oom_kills` counts processes that the memory limit killed, even if the run went on after.

    `exit_code` is set when the command exited, `signal` when a signal ended it that the launcher did not send. In the
    modes with bwrap, which reports both alike, an exit code of 129 to 192 is read as the signal 1 to 64.
    """

    status: Status
    mode: Mode
    exit_code: int | None
    signal: int | None
    wall_s: float
    peak_memory: int | None
    oom_kills: int
    stdout_tail: str
    stderr_tail: str
    detail: str = ""


@dataclass(slots=True)
class Meter:
    """Tells, at any time, the most bytes of memory that a run had in use up to then; None if nobody counts.

    Whoever wants to know hands one to a run, which says how to look; when it has ended, the meter keeps its peak.
    """

    peak_memory: Callable[[], int | None] = lambda: None


ResultLine = Callable[[bytes], None]
Archive = Callable[[bytes], None]
Cancelled = Callable[[], bool]
