"""The `probe` jobs of one batch: run their targets in one sandbox and report each result as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from services.analyses.work import ProbeWork
from services.checks.plan import BUDGET_SPENT
from services.jobs.model import ABSENT_CLASS, NO_DEVICE, Claim, device_name
from services.reports.document import CheckInfo
from worker.environments.told import packages_for
from worker.execution import (
    Batch,
    BatchJob,
    BatchOutcome,
    Call,
    CheckMessage,
    HarnessMessage,
    Message,
    ReadyMessage,
    TargetFinishedMessage,
    Unfinished,
    run_batch,
)
from worker.execution.batch import DeclaredHarness
from worker.execution.convert import check_info, harness_info
from worker.execution.messages import TargetStartedMessage
from worker.sandbox import Launcher, SandboxUnavailableError, open_sandbox
from worker.sandbox.model import Meter
from worker.tools import Tools

log = structlog.get_logger(__name__)


def probe_targets(claims: Sequence[Claim], tools: Tools) -> None:
    """Run one batch. All claims are of one analysis and one device class."""
    known = tools.load(lambda: tools.results.take_over(claims))
    for claim in (claim for claim in claims if claim.job_id in known):
        tools.held.drop(claim.job_id)
    claims = [claim for claim in claims if claim.job_id not in known]
    if not claims:
        return
    work = tools.load(lambda: tools.results.probe_work(claims))
    if work.seconds_left is not None and work.seconds_left <= 0:
        tools.report(claims[0], lambda: tools.results.budget_spent(claims))
        return
    try:
        launcher = open_sandbox(tools.settings)
        run = _Run(claims, work, tools, launcher)
        outcome = run_batch(
            run.batch(),
            launcher=launcher,
            settings=tools.settings,
            on_message=run.hear,
            cancelled=run.cancelled,
            meter=run.meter,
        )
    except SandboxUnavailableError as error:
        for claim in claims:
            _lose(claim, error.message, tools)
        return
    run.conclude(outcome)


class _Run:
    """One batch on its way: passes messages on to the database."""

    def __init__(self, claims: Sequence[Claim], work: ProbeWork, tools: Tools, launcher: Launcher) -> None:
        self._claims: Mapping[str, Claim] = {claim.job_id: claim for claim in claims}
        self._work = work
        self._tools = tools
        self._launcher = launcher
        self.meter = Meter()
        self._finished = 0
        self._blind = False

    def batch(self) -> Batch:
        """What to run."""
        first = next(iter(self._claims.values()))
        source = self._tools.store.path(self._work.snapshot_digest)
        return Batch(
            source=source,
            jobs=tuple(self._job(claim) for claim in self._claims.values()),
            python=self._tools.settings.python,
            device=device_name(first.device_class),
            gpu=self._tools.gpu,
            tolerances=self._work.tolerances,
            seconds_left=self._work.seconds_left,
            layer=packages_for(source, first, self._tools),
            origin=self._work.origin,
        )

    def cancelled(self) -> bool:
        """Whether nothing of the batch is ours any more: cancelled, taken away, given back, all done, or in vain."""
        return self._blind or not any(self._tools.held.holds(claim) for claim in self._claims.values())

    def hear(self, message: Message) -> None:
        """Store what the probe says."""
        results, tools = self._tools.results, self._tools
        if self._blind:
            return
        match message:
            case ReadyMessage(devices=devices) if tools.gpu is not None and not any("cuda" in name for name in devices):
                self._blind = True
            case ReadyMessage(torch=torch, devices=devices):
                mode = self._launcher.mode.value
                self._report_of_batch(
                    lambda claim: results.ran(claim, torch=torch, devices=devices, sandbox=mode, import_torch=1)
                )
            case TargetStartedMessage(job=job):
                claim = self._claims[job]
                tools.report(claim, lambda: results.started(claim))
            case HarnessMessage(job=job, harness=harness, not_run=not_run):
                claim = self._claims[job]
                if harness is not None:
                    kind = message.kind if self._is_guessed(claim) else None
                    tools.report(claim, lambda: results.harness(claim, harness_info(harness), kind))
                elif not_run is not None and not_run.reason == BUDGET_SPENT:
                    tools.report(claim, lambda: results.left_out(claim, not_run.detail))
                elif not_run is not None:
                    tools.report(claim, lambda: results.not_run(claim, not_run.reason, not_run.detail))
            case CheckMessage(job=job, result=result):
                claim = self._claims[job]
                tools.report(claim, lambda: results.check(claim, _told(claim, check_info(result))))
            case TargetFinishedMessage(job=job):
                claim = self._claims[job]
                self._finished += 1
                peak = self.meter.peak_memory()
                tools.end(claim, lambda: results.probed(claim, peak_memory=peak))
            case _:
                pass

    def _report_of_batch(self, write: Callable[[Claim], None]) -> None:
        """Write what holds for the batch as a whole, in the name of the first of its jobs that is still ours."""
        for claim in self._claims.values():
            if self._tools.report(claim, partial(write, claim)):
                return

    def conclude(self, outcome: BatchOutcome) -> None:
        """Say what became of the jobs that the sandbox did not live to finish."""
        if self._blind:
            self._give_up_device()
            return
        progress = self._finished > 0 or any(item.started for item in outcome.unfinished)
        for item in outcome.unfinished:
            claim = self._claims[item.job]
            if self._tools.held.holds(claim):
                self._conclude_one(claim, item, progress=progress)
            else:
                log.info("run_abandoned", job=claim.job_id, cause=item.cause)

    def _conclude_one(self, claim: Claim, item: Unfinished, *, progress: bool) -> None:
        results, tools = self._tools.results, self._tools
        if item.started and item.cause != "cancelled":
            peak = self.meter.peak_memory()
            tools.end(claim, lambda: results.broke(claim, item.cause, item.detail, peak_memory=peak))
        elif progress:
            # Another target took the sandbox down, or a job of this batch was taken away: this one is not to blame.
            reason = f"its sandbox ended before it began ({item.cause})"
            tools.end(claim, lambda: results.returned(claim, reason))
        else:
            _lose(claim, f"{item.cause}: {item.detail}", tools)

    def _give_up_device(self) -> None:
        """The CPU compared with itself would agree: nothing is run there, and the jobs go to whoever sees a device."""
        results, tools = self._tools.results, self._tools
        assert tools.gpu is not None
        tools.condemn(f"torch sees no CUDA device in the sandbox, though {tools.gpu.uuid} was lent to it")
        for claim in self._claims.values():
            if tools.held.holds(claim):
                tools.end(claim, partial(results.returned, claim, "its worker's device can't be seen in the sandbox"))

    def _job(self, claim: Claim) -> BatchJob:
        plan = self._work.plans[claim.job_id]
        declared = plan.declared
        return BatchJob(
            job=claim.job_id,
            target=plan.declaration,
            checks=claim.checks,
            declared=None if declared is None else _declared(declared),
            hypotheses=plan.hypotheses,
            mined=tuple(_call(values) for values in plan.mined),
            guessed=self._is_guessed(claim),
        )

    def _is_guessed(self, claim: Claim) -> bool:
        declared = self._work.plans[claim.job_id].declared
        return declared is not None and declared.get("guessed") is True


def _told(claim: Claim, result: CheckInfo) -> CheckInfo:
    """Why a check that compares devices did not, where that was for want of a worker with one."""
    if claim.device_class != ABSENT_CLASS or result.verdict != "skipped" or "left_out" in result.evidence:
        return result
    evidence = {**result.evidence, "cause": NO_DEVICE}
    return result.model_copy(update={"summary": f"{NO_DEVICE}: {result.summary}", "evidence": evidence})


def _lose(claim: Claim, reason: str, tools: Tools) -> None:
    tools.end(claim, lambda: tools.results.lost(claim, reason))


def _call(values: Mapping[str, object]) -> Call:
    inputs, constructor = values["inputs"], values["constructor"]
    assert isinstance(inputs, list)
    return Call(
        constructor=None if constructor is None else str(constructor),
        inputs=tuple(str(value) for value in inputs),
        provenance=str(values["provenance"]),
        found_by=str(values["found_by"]),
    )


def _declared(values: Mapping[str, object]) -> DeclaredHarness:
    inputs = values["inputs"]
    assert isinstance(inputs, list | tuple)
    constructor = values["constructor"]
    return DeclaredHarness(
        constructor=None if constructor is None else str(constructor),
        inputs=tuple(str(value) for value in inputs),
        provenance=str(values["provenance"]),
    )
