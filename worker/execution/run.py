"""Launch the probe over one batch and relay what it says.

Everything that befalls the sandbox after it was set up is a result: the caller gets an outcome, never an exception.
Only a sandbox that can't be set up raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from analyzer.findings import TargetDeclaration
from services.settings import Settings
from worker.execution.batch import Batch, BatchJob, BatchOutcome, Unfinished
from worker.execution.causes import cause_of
from worker.execution.command import START_ALLOWANCE_S, probe_command, probe_digest
from worker.execution.compiled_headers import compiled_headers, toolchain
from worker.execution.kept_kernels import KeptKernels
from worker.execution.messages import (
    CheckMessage,
    CheckReply,
    HarnessMessage,
    Message,
    NotRun,
    ReadyMessage,
    RefusedLineError,
    TargetFinishedMessage,
    TargetStartedMessage,
    TargetWaitingMessage,
    parse_line,
)
from worker.sandbox.launcher import Launcher
from worker.sandbox.model import Limits, Meter, Mode, Outcome, Status

# What one harness may take before its checks begin (harness facts: 99 % of successes came within 5 s).
_HARNESS_S: Final = 20.0
# What reports and metrics call the devices; a name of its own choice in each result would make as many time series.
_DEVICE_NAMES: Final = {"cpu": "cpu", "cuda": "cuda", "sim": "simulated"}
# Characters of the reason for refusing a line; it may quote the line.
_REFUSAL: Final = 300


def run_batch(
    batch: Batch,
    *,
    launcher: Launcher,
    settings: Settings,
    on_message: Callable[[Message], None],
    cancelled: Callable[[], bool],
    meter: Meter | None = None,
) -> BatchOutcome:
    """Run the checks of every job of the batch; `on_message` hears each validated message as it comes.

    `meter` tells meanwhile how much memory the sandbox took.

    For each job `on_message` hears one `HarnessMessage`, at most one `CheckMessage` per requested check, and one
    `TargetFinishedMessage`, or else the job is among `unfinished`.
    """
    relay = _Relay(batch, on_message)
    kept = _kept_kernels(batch, launcher.mode, settings)
    command = probe_command(
        batch.source,
        batch.python,
        launcher.mode,
        _asked(batch, settings),
        device=batch.device,
        seed=batch.seed,
        layer=batch.layer,
        gpu=batch.gpu,
        headers=_headers(batch, launcher.mode, settings),
        kernels=None if kept is None else kept.lent(),
    )
    coming = None if kept is None else kept.coming()
    try:
        outcome = launcher.run(
            command,
            _limits(batch, settings),
            relay.receive,
            cancelled,
            None if coming is None else coming.receive,
            meter=meter,
        )
        if coming is not None and outcome.status is Status.EXITED and outcome.exit_code == 0:
            coming.keep()
    finally:
        if coming is not None:
            coming.drop()
    relay.flush(outcome)
    return BatchOutcome(
        unfinished=relay.unfinished(outcome),
        torch=relay.ready.torch if relay.ready else None,
        devices=tuple(relay.ready.devices) if relay.ready else (),
        mode=outcome.mode,
        wall_s=outcome.wall_s,
        peak_memory=outcome.peak_memory,
        import_torch=1 if relay.ready else 0,
        import_torch_s=relay.ready.import_torch_s if relay.ready else None,
    )


def _headers(batch: Batch, mode: Mode, settings: Settings) -> Path | None:
    """Unconfined, inductor keeps its own from one run to the next."""
    if mode is Mode.OFF or not _compiles(batch):
        return None
    return compiled_headers(batch.python, settings.compiled_headers_directory)


def _kept_kernels(batch: Batch, mode: Mode, settings: Settings) -> KeptKernels | None:
    """What is kept of earlier runs with the same interpreter, compiler, processor, packages and probe."""
    if mode is Mode.OFF or not settings.kept_kernels or batch.origin is None or not _compiles(batch):
        return None
    tools = toolchain(batch.python)
    if tools is None:
        return None
    surroundings = "\n".join((tools, probe_digest(), str(batch.layer or "")))
    return KeptKernels(settings.kept_kernels_directory, settings.kept_kernels_size, batch.origin, surroundings)


def _compiles(batch: Batch) -> bool:
    return any("compile_equivalence" in job.checks for job in batch.jobs)


def _asked(batch: Batch, settings: Settings) -> dict[str, object]:
    """What the probe is asked for."""
    return {
        "limits": {
            "harness_s": min(_HARNESS_S, settings.target_wall.total_seconds()),
            "check_s": settings.check_wall.total_seconds(),
            "target_s": settings.target_wall.total_seconds(),
            "inductor_s": settings.inductor_budget.total_seconds(),
            **({} if batch.seconds_left is None else {"batch_s": max(0.0, batch.seconds_left)}),
        },
        "tolerances": dict(batch.tolerances),
        **({"device_memory": settings.device_memory} if batch.device == "cuda" else {}),
        "batch": [_request_entry(job) for job in batch.jobs],
    }


def _request_entry(job: BatchJob) -> dict[str, object]:
    target: TargetDeclaration = job.target
    return {
        "job": job.job,
        "target": {
            "name": target.name,
            "kind": target.kind.value,
            "path": target.path,
            "line": target.line,
            "import_root": target.import_root,
            "module": target.module,
            "qualname": target.qualname,
            "guessed": job.guessed,
        },
        "declared": None
        if job.declared is None
        else {
            "constructor": job.declared.constructor,
            "inputs": list(job.declared.inputs),
            "provenance": job.declared.provenance,
        },
        "mined": [
            {
                "constructor": call.constructor,
                "inputs": list(call.inputs),
                "provenance": call.provenance,
                "found_by": call.found_by,
            }
            for call in job.mined
        ],
        "hypotheses": [dict(hypothesis) for hypothesis in job.hypotheses],
        "checks": list(job.checks),
    }


def _limits(batch: Batch, settings: Settings) -> Limits:
    wall = START_ALLOWANCE_S + len(batch.jobs) * (settings.target_wall.total_seconds() + _HARNESS_S)
    return Limits(
        wall_s=min(wall, settings.sandbox_wall.total_seconds()),
        memory=settings.sandbox_memory,
    )


class _Relay:
    """Validates each line, keeps the books of what came for which job, and passes messages on."""

    def __init__(self, batch: Batch, on_message: Callable[[Message], None]) -> None:
        self._jobs = {job.job: job for job in batch.jobs}
        self._source = batch.source
        self._device = batch.device
        self._on_message = on_message
        self._started: set[str] = set()
        self._harnessed: set[str] = set()
        self._runnable: set[str] = set()
        self._checked: dict[str, set[str]] = {job.job: set() for job in batch.jobs}
        self._finished: set[str] = set()
        self._waiting: dict[str, NotRun] = {}
        self._held: dict[str, list[Message]] = {}
        # A number and one reason, whatever is sent: 64 MiB of line ends would be 64 million reasons.
        self._refused = 0
        self._first_refusal = ""
        self.ready: ReadyMessage | None = None

    def receive(self, line: bytes) -> None:
        """Take one line of the probe."""
        try:
            message = parse_line(line)
        except RefusedLineError as error:
            self._refused += 1
            self._first_refusal = self._first_refusal or str(error)[:_REFUSAL]
            return
        match message:
            case ReadyMessage():
                if self.ready is None:
                    self.ready = message
                    self._on_message(message)
            case TargetStartedMessage(job=job) if job in self._jobs:
                self._waiting.pop(job, None)
                if job not in self._started:
                    self._started.add(job)
                    self._pass(job, message)
            case TargetWaitingMessage(job=job, not_run=not_run) if self._is_tried(job):
                self._waiting[job] = not_run
            case HarnessMessage(job=job) if job in self._jobs and job not in self._harnessed | self._finished:
                self._harnessed.add(job)
                self._waiting.pop(job, None)
                if message.harness is not None:
                    self._runnable.add(job)
                self._pass(job, message)
            case CheckMessage(job=job, result=result) if self._is_expected(job, result.check):
                self._checked[job].add(result.check)
                self._pass(job, CheckMessage(type="check", job=job, result=self._vetted(result)))
            case TargetFinishedMessage(job=job) if job in self._jobs and job not in self._finished:
                self._waiting.pop(job, None)
                self._complete(job)
                self._finished.add(job)
                self._pass(job, message)
            case _:
                pass

    def flush(self, outcome: Outcome) -> None:
        """Pass on what was held back until it was known whether the memory limit had killed a process.

        A target that still waited for its second turn is not what ended the sandbox: what was known of it holds.
        """
        for job, not_run in self._waiting.items():
            self._harnessed.add(job)
            self._finished.add(job)
            self._pass(job, HarnessMessage(type="harness", job=job, not_run=not_run))
            self._pass(job, TargetFinishedMessage(type="target_finished", job=job))
        self._waiting.clear()
        for messages in self._held.values():
            for message in messages:
                self._on_message(_blame_memory(message) if outcome.oom_kills else message)
        self._held.clear()

    def unfinished(self, outcome: Outcome) -> tuple[Unfinished, ...]:
        """The jobs that did not finish, each with the cause."""
        cause, sentence = cause_of(outcome, refused=self._refused, refusal=self._first_refusal)
        return tuple(
            Unfinished(job=job, cause=cause, detail=sentence, started=job in self._started)
            for job in self._jobs
            if job not in self._finished
        )

    def _is_tried(self, job: str) -> bool:
        """Whether the probe has begun with the target and not said yet whether it can be called."""
        return job in self._started and job not in self._harnessed | self._finished

    def _is_expected(self, job: str, check: str) -> bool:
        entry = self._jobs.get(job)
        return (
            entry is not None
            and job not in self._finished
            and check in entry.checks
            and check not in self._checked[job]
        )

    def _vetted(self, result: CheckReply) -> CheckReply:
        """A result can only speak of the device that was asked for, and of a file of the snapshot."""
        changes: dict[str, object] = {}
        asked = _DEVICE_NAMES[self._device]
        if result.device not in {"cpu", asked}:
            changes["device"] = asked
        if result.path is not None and not self._is_of_snapshot(result.path):
            changes |= {"path": None, "line": None}
        return result.model_copy(update=changes) if changes else result

    def _is_of_snapshot(self, name: str) -> bool:
        """Whether a check names a file that was submitted: every other name would be a text of its own choice."""
        path = PurePosixPath(name)
        return not path.is_absolute() and ".." not in path.parts and os.path.isfile(self._source / path)  # noqa: PTH113

    def _complete(self, job: str) -> None:
        """Say of everything that a finished target left out that it was left out: silence is no result."""
        if job not in self._harnessed:
            self._harnessed.add(job)
            reason = NotRun(reason="crashed", detail="the probe finished the target without a word about its harness")
            self._pass(job, HarnessMessage(type="harness", job=job, not_run=reason))
        if job in self._runnable:
            for check in self._jobs[job].checks:
                if check not in self._checked[job]:
                    self._checked[job].add(check)
                    self._pass(job, CheckMessage(type="check", job=job, result=_silent(check, self._device)))

    def _pass(self, job: str, message: Message) -> None:
        if job in self._held or _was_killed(message):
            self._held.setdefault(job, []).append(message)
        else:
            self._on_message(message)


def _silent(check: str, device: str) -> CheckReply:
    return CheckReply(
        check=check, verdict="error", device=device, summary="the probe sent no result for this check", duration_s=0.0
    )


def _was_killed(message: Message) -> bool:
    """Whether a process of the target died of SIGKILL, which the memory limit sends as well as anybody else."""
    match message:
        case CheckMessage(result=result):
            return result.verdict == "error" and result.evidence.get("signal") == "SIGKILL"
        case HarnessMessage(not_run=NotRun(reason="crashed", detail=detail)):
            return "SIGKILL" in detail
        case _:
            return False


def _blame_memory(message: Message) -> Message:
    if not _was_killed(message):
        return message
    text = "killed: the memory limit of the sandbox was reached"
    match message:
        case CheckMessage(job=job, result=result):
            evidence = {**result.evidence, "out_of_memory": True}
            return CheckMessage(
                type="check", job=job, result=result.model_copy(update={"summary": text, "evidence": evidence})
            )
        case HarnessMessage(job=job):
            return HarnessMessage(type="harness", job=job, not_run=NotRun(reason="out of memory", detail=text))
        case _:
            return message
