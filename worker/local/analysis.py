"""The way of a submission without a server: snapshot, findings, targets, checks, verdicts, gate, report."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from analyzer.findings import TargetDeclaration, TargetKind
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.planning import plan_info, run_order
from services.analyses.reading import read_snapshot
from services.checks.plan import BUDGET_SPENT, BY_DEFAULT
from services.findings.failures import with_failures
from services.findings.hypotheses import Suspicions
from services.findings.model import TargetResult
from services.findings.settle import settle
from services.gates import evaluate, retain
from services.identifiers import new_id
from services.reports.build import build_report
from services.reports.document import (
    AnalysisInfo,
    AnalysisStatus,
    CheckInfo,
    EnvironmentInfo,
    ExampleInfo,
    Harness,
    PlanInfo,
    Report,
    SnapshotInfo,
    Source,
    Tool,
)
from services.reuse.origins import origin_of_analysis, origin_of_directory
from services.settings import Settings
from services.snapshots.model import Snapshot, SourceTree
from services.snapshots.store import SnapshotStore
from services.version import version
from worker.devices import Gpu
from worker.devices.lending import borrowed
from worker.environments import layer_for
from worker.execution import (
    Batch,
    BatchJob,
    BatchOutcome,
    Call,
    CheckMessage,
    Examples,
    HarnessMessage,
    Message,
    TargetFinishedMessage,
    TargetStartedMessage,
    Unfinished,
    run_batch,
    run_examples,
)
from worker.execution.batch import DeclaredHarness, Device
from worker.execution.convert import check_info, harness_info
from worker.local.progress import Progress
from worker.local.reuse import Reuse
from worker.local.verdicts import KeptExamples, KeptResult
from worker.sandbox import open_sandbox
from worker.sandbox.launcher import Launcher

# A target that was running when its sandbox died is taken to be the cause and not tried again; the others of its
# batch are, and after this many sandboxes without any progress the rest is given up.
_MAXIMUM_ROUNDS: Final = 50


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What one run may choose beside `AnalysisOptions`.

    `known` holds the fingerprints of the base, or is None without one: then every finding is new. With
    `everything_known` none is. `only` limits the findings and targets to some of the tree's files (None: all).
    `changed` are the files that differ from the base (None: nobody knows): their targets are run early. `verdicts` is
    where results are kept for targets that have not changed (None: everything is run).
    """

    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)
    device: Device = "cpu"
    known: frozenset[str] | None = None
    everything_known: bool = False
    only: frozenset[str] | None = None
    changed: frozenset[str] | None = None
    seed: int = 0
    verdicts: Path | None = None
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class LocalAnalysis:
    """A finished analysis: the report, and the sources that its excerpts are quoted from."""

    report: Report
    tree: SourceTree

    @classmethod
    def run(
        cls, tree: SourceTree, *, settings: Settings, options: LocalOptions, progress: Progress,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> LocalAnalysis:  # fmt: skip
        """Analyse a tree.

        Raises `SandboxUnavailableError` when code is to be run and can't be confined, `DeviceBusyError` when it is to
        be run on a GPU and all are in use, and whatever the configuration of the repository is refused with.
        """
        created = datetime.now(UTC)
        launcher = None if options.analysis.static_only else open_sandbox(settings)
        with _stored(tree) as (snapshot, source):
            progress.stage("static", 0)
            outcome = _limited(read_snapshot(source, options.analysis), options.only)
            runs = _Runs(
                source,
                snapshot,
                outcome,
                settings=settings,
                options=options,
                progress=progress,
                cancelled=cancelled,
            )
            if launcher is not None:
                with borrowed(settings) if options.device == "cuda" else nullcontext() as gpu:
                    runs.run(launcher, gpu)
            return cls(_report(snapshot, outcome, runs, options, created), tree)


def _limited(outcome: StaticOutcome, only: frozenset[str] | None) -> StaticOutcome:
    if only is None:
        return outcome
    analysis = outcome.analysis
    return replace(
        outcome,
        analysis=replace(
            analysis,
            findings=tuple(item for item in analysis.findings if item.region.path in only),
            suppressed=tuple(item for item in analysis.suppressed if item.finding.region.path in only),
            targets=tuple(item for item in analysis.targets if item.path in only),
        ),
    )


@contextmanager
def _stored(tree: SourceTree) -> Iterator[tuple[Snapshot, Path]]:
    """The tree as read-only files that a sandbox can see, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="gradproof-check-") as directory:
        place = Path(directory)
        place.chmod(0o755)  # a sandbox of another uid looks in
        store = SnapshotStore(place / "snapshots")
        snapshot = store.put(tree)
        yield snapshot, store.path(snapshot.digest)


class _Runs:
    """Runs the targets in batches on a few threads and gathers what comes."""

    def __init__(
        self, source: Path, snapshot: Snapshot, outcome: StaticOutcome, *, settings: Settings, options: LocalOptions,
        progress: Progress, cancelled: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._source = source
        self._outcome = outcome
        self._settings = settings
        self._options = options
        self._progress = progress
        self._interrupted = threading.Event()
        self._cancelled_outside = cancelled
        self._lock = threading.Lock()
        self._check_names = options.analysis.checks or outcome.checks or BY_DEFAULT
        self._suspected = retain(outcome.analysis.findings, outcome.policy)
        self._suspicions = Suspicions(self._suspected, outcome.analysis.targets, outcome.analysis.reaches)
        self._targets = {str(number): target for number, target in enumerate(outcome.analysis.targets)}
        self._reuse = Reuse(
            None if options.analysis.static_only or not options.analysis.reuse else options.verdicts,
            source,
            snapshot.digest,
            outcome,
            self._suspicions,
            settings,
            options.device,
            options.seed,
            self._check_names,
        )
        self._origin = (
            origin_of_analysis(None, url=snapshot.source.url, ref=None, snapshot=snapshot.digest)
            if options.directory is None
            else origin_of_directory(options.directory)
        )
        self._reused: set[str] = set()
        self._harness: dict[str, Harness] = {}
        self._begun: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._not_run: dict[str, tuple[str, str]] = {}
        self._checks: dict[str, list[CheckInfo]] = {job: [] for job in self._targets}
        self._calls: Mapping[str, Sequence[Call]] = {}
        self._until: float | None = None
        self._layer: Path | None = None
        self._gpu: Gpu | None = None
        # A GPU is for one sandbox at a time.
        self._at_once = 1 if options.device == "cuda" else settings.concurrency
        self.environment: EnvironmentInfo | None = None
        self.examples: tuple[ExampleInfo, ...] = ()
        self.examples_reason: str | None = None
        self.outcomes: list[BatchOutcome] = []
        self._peak_of_examples: int | None = None

    def run(self, launcher: Launcher, gpu: Gpu | None = None) -> None:
        """Run every target; jobs that a dying sandbox never began are run again in a fresh one."""
        self._gpu = gpu
        pending = self._pending()
        if pending:
            self._build_environment()
        budget = self._settings.analysis_budget.total_seconds()
        self._until = time.monotonic() + budget if budget else None
        if pending and self._outcome.has_examples and self._settings.examples_budget:
            self._learn_from_examples(launcher)
        pending = self._without_known(pending)
        self._progress.stage("checks", len(pending))
        for _ in range(_MAXIMUM_ROUNDS):
            if not pending or self._cancelled():
                break
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="batch") as pool:
                try:
                    lost = list(pool.map(lambda batch: self._batch(launcher, batch), self._shares(pending)))
                except BaseException:
                    # Ctrl-C, above all: the threads end their sandboxes within a fifth of a second, and the pool waits.
                    self._interrupted.set()
                    pool.shutdown(cancel_futures=True)
                    raise
                pending = [unfinished.job for batch in lost for unfinished in batch]
        for job in pending:
            self._end(job, "cancelled" if self._cancelled() else "crashed", "its sandbox died again and again")
        self._keep_results()

    def _pending(self) -> list[str]:
        """The targets that are to be run, in the order of running them; says of the others why they are not."""
        targets = self._outcome.analysis.targets
        order = run_order(targets, self._suspicions, self._suspected, self._options.changed)
        jobs = list(self._targets)
        for job, target in self._targets.items():
            if (not_run := self._outcome.not_run(target)) is not None:
                self._not_run[job] = not_run
        return [jobs[index] for index in order if jobs[index] not in self._not_run]

    def _build_environment(self) -> None:
        self._progress.stage("environment", 0)
        layer = layer_for(self._source, self._settings)
        if layer is not None:
            self._layer = layer.packages_at
            self.environment = EnvironmentInfo.model_validate(layer.told())

    def _without_known(self, pending: Sequence[str]) -> list[str]:
        """Those of the targets for which no earlier run has results that still hold; the others are given theirs."""
        unknown = []
        for job in pending:
            target = self._targets[job]
            kept = self._reuse.load(target, [asdict(call) for call in self._calls.get(target.name, ())])
            if kept is None:
                unknown.append(job)
                continue
            self._reused.add(job)
            self._checks[job] = list(kept.checks)
            if kept.harness is not None:
                self._harness[job] = kept.harness
            elif kept.not_run_reason is not None:
                self._not_run[job] = (kept.not_run_reason, kept.not_run_detail)
        return unknown

    def _keep_results(self) -> None:
        for job, result in zip(self._targets, self.results(), strict=True):
            if job not in self._reused:
                self._reuse.store(
                    result.declaration,
                    KeptResult(
                        harness=result.harness,
                        not_run_reason=result.not_run_reason,
                        not_run_detail=result.not_run_detail,
                        checks=result.checks,
                    ),
                )
        self._reuse.clear_old()

    def _learn_from_examples(self, launcher: Launcher) -> None:
        names = tuple(target.name for job, target in self._targets.items() if job not in self._not_run)
        kept = self._reuse.load_examples(names)
        if kept is None:
            self._run_examples(launcher, names)
            return
        self.examples = kept.tried
        self._calls = kept.calls

    def _run_examples(self, launcher: Launcher, names: tuple[str, ...]) -> None:
        self._progress.stage("examples", 0)
        outcome = run_examples(
            Examples(self._source, names, self._settings.python, self._layer),
            launcher=launcher,
            settings=self._settings,
            cancelled=self._cancelled,
        )
        self._calls, self.examples = outcome.calls, outcome.tried
        self._peak_of_examples = outcome.peak_memory
        self.examples_reason = None if outcome.cause is None else f"{outcome.cause}: {outcome.detail}"
        if outcome.cause is None:
            calls = {name: tuple(calls) for name, calls in outcome.calls.items()}
            self._reuse.store_examples(names, KeptExamples(tried=outcome.tried, calls=calls))

    def _cancelled(self) -> bool:
        return self._interrupted.is_set() or self._cancelled_outside()

    @property
    def peaks(self) -> tuple[int, ...]:
        """The most bytes of memory that each sandbox had in use, where somebody counted."""
        counted = (self._peak_of_examples, *(outcome.peak_memory for outcome in self.outcomes))
        return tuple(peak for peak in counted if peak is not None)

    def results(self) -> tuple[TargetResult, ...]:
        """Every target with what running it brought, in the order of the source."""
        return tuple(
            TargetResult(
                declaration=target,
                harness=self._harness.get(job),
                not_run_reason=self._not_run.get(job, (None, ""))[0],
                not_run_detail=self._not_run.get(job, (None, ""))[1],
                checks=tuple(self._checks[job]),
                reused=job in self._reused,
                duration_s=self._took.get(job),
            )
            for job, target in self._targets.items()
        )

    def plan(self, targets: Sequence[TargetResult]) -> PlanInfo:
        """What was to be run, and what of it was."""
        return plan_info(
            targets,
            budget_s=self._settings.analysis_budget.total_seconds(),
            checks=self._check_names,
            examples=self.examples_reason,
        )

    def ending(self) -> tuple[AnalysisStatus, str | None]:
        """How the runs ended as a whole: what Gradproof itself could not do makes an analysis partial."""
        unfinished = [(batch, job) for batch in self.outcomes for job in batch.unfinished]
        if any(job.cause == "cancelled" for _, job in unfinished):
            return "cancelled", "interrupted before everything was run"
        silent = [job for batch, job in unfinished if batch.torch is None]
        if silent:
            return "partial", f"the probe did not come up for {len(silent)} targets: {silent[0].detail}"
        return "finished", None

    def _shares(self, jobs: Sequence[str]) -> list[tuple[str, ...]]:
        """Equal batches, at most `target_batch` each, at least one for every thread: `import torch` is shared.

        Cut from the order of running, in which the targets of a file are neighbours.
        """
        size = max(1, min(self._settings.target_batch, -(-len(jobs) // self._at_once)))
        return [tuple(jobs[start : start + size]) for start in range(0, len(jobs), size)]

    def _batch(self, launcher: Launcher, jobs: Sequence[str]) -> list[Unfinished]:
        """Run one batch; returns the jobs that never began."""
        if self._until is not None and time.monotonic() > self._until:
            budget = self._settings.analysis_budget.total_seconds()
            for job in jobs:
                self._end(job, BUDGET_SPENT, f"{budget:g} s of the analysis were over")
            return []
        batch = Batch(
            source=self._source,
            jobs=tuple(self._job(job) for job in jobs),
            python=self._settings.python,
            device=self._options.device,
            seed=self._options.seed,
            tolerances=self._outcome.tolerances,
            seconds_left=None if self._until is None else self._until - time.monotonic(),
            layer=self._layer,
            gpu=self._gpu,
            origin=self._origin,
        )
        outcome = run_batch(
            batch, launcher=launcher, settings=self._settings, on_message=self._hear, cancelled=self._cancelled
        )
        with self._lock:
            self.outcomes.append(outcome)
        lost = []
        for unfinished in outcome.unfinished:
            # Without a probe that came up there is nobody to blame but the surroundings: trying again would not help.
            if unfinished.started or outcome.torch is None or unfinished.cause == "cancelled":
                self._end(unfinished.job, unfinished.cause, unfinished.detail)
            else:
                lost.append(unfinished)
        return lost

    def _job(self, job: str) -> BatchJob:
        target = self._targets[job]
        declared = self._outcome.declared.get(target.name)
        return BatchJob(
            job=job,
            target=target,
            checks=self._check_names,
            declared=None
            if declared is None
            else DeclaredHarness(declared.constructor, declared.inputs, declared.provenance),
            hypotheses=self._suspicions.of(target),
            mined=tuple(self._calls.get(target.name, ())),
            guessed=self._is_guessed(job),
        )

    def _is_guessed(self, job: str) -> bool:
        declared = self._outcome.declared.get(self._targets[job].name)
        return declared is not None and declared.guessed

    def _hear(self, message: Message) -> None:
        with self._lock:
            match message:
                case HarnessMessage(job=job, harness=None, not_run=not_run) if not_run is not None:
                    self._not_run[job] = (not_run.reason, not_run.detail)
                case HarnessMessage(job=job, harness=harness, kind=kind) if harness is not None:
                    self._harness[job] = harness_info(harness)
                    if kind is not None and self._is_guessed(job):
                        self._targets[job] = replace(self._targets[job], kind=TargetKind(kind))
                case CheckMessage(job=job, result=result):
                    self._checks[job].append(check_info(result))
                case TargetStartedMessage(job=job):
                    self._begun[job] = time.monotonic()
                case TargetFinishedMessage(job=job):
                    self._took[job] = round(time.monotonic() - self._begun.get(job, time.monotonic()), 3)
                    self._progress.step(self._label(job))
                case _:
                    pass

    def _end(self, job: str, cause: str, detail: str) -> None:
        """Say of everything that is missing why it is missing."""
        with self._lock:
            if job not in self._harness:
                self._not_run.setdefault(job, (cause, detail))
            else:
                present = {check.check for check in self._checks[job]}
                for name in self._check_names:
                    if name not in present:
                        self._checks[job].append(
                            CheckInfo(
                                check=name,
                                verdict="error",
                                device=self._options.device,
                                summary=f"{cause}: {detail}",
                                evidence={"cause": cause},
                                duration_s=0.0,
                            )
                        )
            self._progress.step(self._label(job))

    def _label(self, job: str) -> str:
        target: TargetDeclaration = self._targets[job]
        if job in self._not_run:
            return f"{target.name}: {self._not_run[job][0]}"
        verdicts = ", ".join(f"{check.check} {check.verdict}" for check in self._checks[job])
        return f"{target.name}: {verdicts or 'no check'}"


def _report(
    snapshot: Snapshot, outcome: StaticOutcome, runs: _Runs, options: LocalOptions, created: datetime
) -> Report:
    targets = runs.results()
    found = retain(outcome.analysis.findings, outcome.policy)
    known = options.known or frozenset()
    if options.everything_known:
        known = frozenset(finding.fingerprint for finding in found)
    findings = with_failures(settle(found, targets, known=known), targets, known=known)
    status, reason = runs.ending()
    finished = datetime.now(UTC)
    return build_report(
        tool=_tool(runs),
        analysis=AnalysisInfo(
            id=new_id(),
            created_at=created,
            finished_at=finished,
            status=status,
            duration_s=(finished - created).total_seconds(),
            reason=reason,
            peak_memory_bytes=max(runs.peaks, default=None),
        ),
        snapshot=SnapshotInfo(
            digest=snapshot.digest,
            source=Source(kind=snapshot.source.kind, url=snapshot.source.url, commit=snapshot.source.commit),
            files=snapshot.files,
            lines=snapshot.lines,
        ),
        gate=evaluate(findings, targets, outcome.policy, status=status, status_reason=reason),
        findings=findings,
        suppressed=outcome.analysis.suppressed,
        targets=targets,
        examples=runs.examples,
        imports=outcome.analysis.import_notes,
        plan=None if options.analysis.static_only else runs.plan(targets),
    )


def _tool(runs: _Runs) -> Tool:
    torch = next((outcome.torch for outcome in runs.outcomes if outcome.torch is not None), None)
    devices = sorted({device for outcome in runs.outcomes for device in outcome.devices})
    modes = sorted({outcome.mode.value for outcome in runs.outcomes})
    return Tool(
        version=version(),
        torch=torch,
        devices=devices,
        sandbox=", ".join(modes) or "none",
        torch_imports=sum(outcome.import_torch for outcome in runs.outcomes),
        environment=runs.environment,
    )
