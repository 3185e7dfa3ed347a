"""What a batch asks for and what came of it: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from analyzer.findings import TargetDeclaration
from services.reuse.origins import Origin
from worker.devices import Gpu
from worker.sandbox.model import Mode

Device = Literal["cpu", "cuda", "sim"]
UnfinishedCause = Literal["crashed", "timed out", "out of memory", "output limit", "cancelled", "probe failed"]


@dataclass(frozen=True, slots=True)
class DeclaredHarness:
    """How the submitted repository says that a target is built and called."""

    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a target that was recorded while the repository's own code ran."""

    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str
    found_by: str


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One target of a batch. `job` is an opaque id that comes back with every message about it.

    `guessed`: the kind of the target is to be told by the probe, once it has imported it.
    """

    job: str
    target: TargetDeclaration
    checks: tuple[str, ...]
    declared: DeclaredHarness | None = None
    hypotheses: tuple[Mapping[str, object], ...] = ()
    mined: tuple[Call, ...] = ()
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Targets of one snapshot that share one sandbox and one `import torch`.

    `source` is the directory of the snapshot; `python` the interpreter that runs the probe beside submitted code.
    `layer` holds the packages of its own requirements, None without any. `gpu` is lent to it, for `device` "cuda".
    `seconds_left` of the budget of the analysis (None: it has none): afterwards no further target is begun.
    `origin` says whose code it is: what inductor compiles is kept for the next run of the same (None: for nobody).
    """

    source: Path
    jobs: tuple[BatchJob, ...]
    python: Path
    device: Device = "cpu"
    seed: int = 0
    tolerances: Mapping[str, float] = field(default_factory=dict)
    seconds_left: float | None = None
    layer: Path | None = None
    gpu: Gpu | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A job whose target the sandbox did not live to finish, with the cause and a sentence for a person.

    `started` tells whether the probe had begun with it: a job that never began is to be run again, one that had begun
    is taken to be the cause, and what befell the sandbox is its result.
    """

    job: str
    cause: UnfinishedCause
    detail: str
    started: bool


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """How a batch ended. `torch` and `devices` are None and empty when the probe never came up.

    `import_torch` counts the times that torch was imported for this batch (0 or 1).
    """

    unfinished: tuple[Unfinished, ...]
    torch: str | None
    devices: tuple[str, ...]
    mode: Mode
    wall_s: float
    peak_memory: int | None
    import_torch: int
    import_torch_s: float | None
