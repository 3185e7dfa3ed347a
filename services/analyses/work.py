"""What workers report back. Each call is one transaction and proves first that the job is still the worker's.

Results are stored as they come, so that a page can show them; ending a job and, with the last one, settling the
analysis happen in one transaction. This module must not know how anything is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from sqlalchemy.orm import Session

from analyzer.findings import Finding, TargetDeclaration
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.models import AnalysisRow, Purpose
from services.analyses.planning import run_order
from services.analyses.queueing import queue_examples, queue_probes, static_job
from services.analyses.repository import note_snapshot
from services.analyses.reusing import reuse_examples, reuse_results
from services.analyses.settlement import POLICY, judging_policy, settle_if_done
from services.checks import repository as checks
from services.checks.plan import BUDGET_SPENT
from services.checks.repository import TargetPlan
from services.database import Database, UnitOfWork
from services.database.base import utc_now
from services.findings.hypotheses import Suspicions
from services.findings.repository import store_findings, store_suppressions
from services.findings.settle import settle
from services.forges.queueing import queue_publishing
from services.gates import retain
from services.jobs import repository as jobs
from services.jobs.errors import LeaseLostError
from services.jobs.model import CPU_QUEUE, Claim, device_name
from services.jobs.models import OWNED_STATES, JobKind, JobRow, JobState
from services.reports.document import CheckInfo, ExampleInfo, Harness
from services.reuse.bounds import bounds_of
from services.reuse.keys import Circumstances, Surroundings, content_key, examples_key
from services.reuse.origins import Origin, origin_of_analysis
from services.settings import Settings
from services.snapshots.model import Snapshot
from services.triage.policy import effective_policy, proposal_modes
from services.triage.repository import settings_of

_ENDED_EARLY = {"crashed": JobState.CRASHED, "timed out": JobState.TIMED_OUT, "out of memory": JobState.CRASHED}

# Gradproof's own parts failed: the checks are recorded as errors, so that a report shows what it lacks.
NOT_RUN = "infrastructure"


@dataclass(frozen=True, slots=True)
class ProbeWork:
    """What a worker has to know to run a batch: the snapshot, the tolerances, and the target of each job.

    `seconds_left` of the budget of the analysis; None without one. `origin` says whose code it is.
    """

    snapshot_digest: str
    tolerances: Mapping[str, float]
    plans: Mapping[str, TargetPlan]
    origin: Origin
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class ExamplesWork:
    """What a worker has to know to run a repository's own examples: the snapshot, and whose calls are of interest."""

    snapshot_digest: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StaticWork:
    """What a worker has to know to read a snapshot. `base_digest` is that of the snapshot to compare with, if any."""

    snapshot_digest: str
    options: AnalysisOptions
    base_digest: str | None = None


@dataclass(frozen=True, slots=True)
class IngestWork:
    """What a worker has to know to fetch a source."""

    url: str
    ref: str | None


class WorkResults:
    """The worker's view of analyses: what to do, and what came of it."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    # ------------------------------------------------------------------------------------------ what to do

    def ingest_work(self, claim: Claim) -> IngestWork:
        """The source to fetch."""
        with self._database.reading() as session:
            row = session.get_one(AnalysisRow, claim.analysis_id)
            assert row.source_url is not None
            return IngestWork(row.source_url, row.source_ref)

    def static_work(self, claim: Claim) -> StaticWork:
        """The snapshot to read."""
        with self._database.reading() as session:
            row = session.get_one(AnalysisRow, claim.analysis_id)
            assert row.snapshot_digest is not None
            base = None if row.base_id is None else session.get(AnalysisRow, row.base_id)
            return StaticWork(
                row.snapshot_digest,
                AnalysisOptions.model_validate(row.options).model_copy(
                    update={"modes": proposal_modes(judging_policy(session, row), settings_of(session, row.project_id))}
                ),
                None if base is None else base.snapshot_digest,
            )

    def examples_work(self, claim: Claim) -> ExamplesWork:
        """The snapshot whose examples are to be run."""
        with self._database.reading() as session:
            row = session.get_one(AnalysisRow, claim.analysis_id)
            assert row.snapshot_digest is not None
            return ExamplesWork(row.snapshot_digest, tuple(checks.names_of(session, row.id)))

    def probe_work(self, claims: Sequence[Claim]) -> ProbeWork:
        """The targets to run; all claims are of one analysis. `plans` is keyed by job id."""
        targets = {claim.job_id: claim.target_id for claim in claims if claim.target_id is not None}
        analysis_id = claims[0].analysis_id
        with self._database.reading() as session:
            row = session.get_one(AnalysisRow, analysis_id)
            assert row.snapshot_digest is not None
            plans = checks.load_plans(session, list(targets.values()))
            tolerances = (row.configuration or {}).get("tolerances", {})
            assert isinstance(tolerances, dict)
            return ProbeWork(
                row.snapshot_digest,
                tolerances,
                {job: plans[target] for job, target in targets.items()},
                origin_of_analysis(
                    row.project_id,
                    url=row.source_url if row.source_kind == "git" else None,
                    ref=row.source_ref,
                    snapshot=row.snapshot_digest,
                ),
                self._seconds_left(row),
            )

    # ------------------------------------------------------------------------------------------ what came of it

    def ingested(self, claim: Claim, snapshot: Snapshot) -> None:
        """The source was fetched and stored: next comes reading it."""
        with self._ending(claim) as (uow, row):
            note_snapshot(uow.session, row, snapshot)
            uow.session.flush()
            queue_publishing(uow.session, row)
            uow.session.add(static_job(row.id, self._settings))
            jobs.finish(uow.session, claim, JobState.SUCCEEDED)
            uow.ring(CPU_QUEUE)

    def read(
        self,
        claim: Claim,
        outcome: StaticOutcome,
        changed: frozenset[str] | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """The snapshot was read: its findings are visible from now on, its targets are queued, or its examples first.

        `changed` are the files that differ from the base (None: nobody knows). `surroundings` are those of this worker
        (None: they can't be told, and nothing is reused).
        """
        with self._ending(claim) as (uow, row):
            options = AnalysisOptions.model_validate(row.options)
            own = judging_policy(uow.session, row) or outcome.policy
            policy = effective_policy(own, settings_of(uow.session, row.project_id))
            found = retain(outcome.analysis.findings, policy)
            store_findings(uow.session, row.id, settle(found, ()))
            store_suppressions(uow.session, row.id, outcome.analysis.suppressed)
            row.configuration = {
                "policy": POLICY.dump_python(outcome.policy, mode="json"),
                "tolerances": dict(outcome.tolerances),
                "checks": list(outcome.checks),
                "reading": dict(outcome.reading),
            }
            row.configuration_hash = _hash({"options": row.options, "configuration": row.configuration})
            row.static_finished_at = utc_now()
            row.tool = {**row.tool, "imports": [asdict(note) for note in outcome.analysis.import_notes]}
            circumstances = None if surroundings is None else self._circumstances(outcome, surroundings)
            plans = _plans(outcome, found, changed, circumstances, backwards=row.purpose == Purpose.BASE)
            checks.store_targets(uow.session, row.id, plans)
            if not options.static_only:
                if circumstances is not None and row.snapshot_digest is not None:
                    names = [plan.declaration.name for plan in plans if plan.not_run is None]
                    row.examples_key = examples_key(row.snapshot_digest, names, circumstances.surroundings)
                self._queue_runs(uow, row, outcome, plans, reuse=options.reuse)
            jobs.finish(uow.session, claim, JobState.SUCCEEDED)

    def examples(
        self,
        claim: Claim,
        tried: Sequence[ExampleInfo],
        mined: Mapping[str, Sequence[Mapping[str, object]]],
        *,
        ended: tuple[JobState, str] | None = None,
        peak_memory: int | None = None,
    ) -> None:
        """The repository's own examples were run, or as far as they came: now its targets are queued.

        `mined` holds the recorded calls by the name of the target. `ended` is how the run ended, if not well: that
        costs harnesses and never the analysis. `peak_memory` is that of their sandbox in bytes; None: nobody counted.
        """
        with self._ending(claim) as (uow, row):
            _note_memory(row, peak_memory)
            row.examples = [example.model_dump(mode="json") for example in tried]
            checks.store_mined(uow.session, row.id, mined)
            state, reason = ended or (JobState.SUCCEEDED, None)
            jobs.finish(uow.session, claim, state, reason)
            row.examples_reason = reason
            queue_probes(uow, row, self._settings)

    def ended(self, claim: Claim, state: JobState, reason: str) -> None:
        """A job that is no probe ended without what it was for: the analysis fails, with this reason."""
        with self._ending(claim) as (uow, _):
            jobs.finish(uow.session, claim, state, reason)

    def take_over(self, claims: Sequence[Claim]) -> frozenset[str]:
        """End those of these jobs whose results another analysis has found out since they were queued; their ids.

        A change and its base are often analysed at the same time: what one of them has run, the other need not.
        """
        with self._database.unit_of_work() as uow:
            row = jobs.lock_analysis(uow.session, claims[0].analysis_id)
            if row is None or not AnalysisOptions.model_validate(row.options).reuse:
                return frozenset()
            held = {claim.job_id: (claim.owner, claim.attempt) for claim in claims}
            ours = [
                job
                for job in jobs.jobs_with(uow.session, row.id, list(held))
                if (job.owner, job.attempt) == held[job.id] and job.state in OWNED_STATES
            ]
            if not reuse_results(uow.session, row, ours):
                return frozenset()
            settle_if_done(uow.session, row)
            return frozenset(job.id for job in ours if job.state == JobState.SUCCEEDED)

    def started(self, claim: Claim) -> None:
        """The target of the job is being run from now on; the others of its batch wait for their turn."""
        with self._fenced(claim):
            pass

    def harness(self, claim: Claim, harness: Harness, kind: str | None = None) -> None:
        """The target of the job could be built and called like this; `kind` is what it is, if that was not known."""
        with self._fenced(claim) as (uow, target_id):
            checks.record_harness(uow.session, target_id, harness, kind)

    def not_run(self, claim: Claim, reason: str, detail: str) -> None:
        """No check of the target can run: a few stable words, and the sentence behind them."""
        with self._fenced(claim) as (uow, target_id):
            checks.record_not_run(uow.session, target_id, reason, detail)

    def check(self, claim: Claim, result: CheckInfo) -> None:
        """One check of the target ended."""
        with self._fenced(claim) as (uow, target_id):
            checks.record_check(
                uow.session, analysis_id=claim.analysis_id, target_id=target_id, job_id=claim.job_id, check=result
            )

    def probed(self, claim: Claim, *, peak_memory: int | None = None) -> None:
        """Everything about the target of this job has been said. `peak_memory` is that of its sandbox up to now."""
        with self._ending(claim) as (uow, row):
            _note_memory(row, peak_memory)
            jobs.finish(uow.session, claim, JobState.SUCCEEDED)

    def broke(self, claim: Claim, cause: str, detail: str, *, peak_memory: int | None = None) -> None:
        """The submitted code took its sandbox down: a result. Checks that have none say so."""
        with self._ending(claim) as (uow, row):
            _note_memory(row, peak_memory)
            leave_no_silence(uow.session, claim, cause, detail)
            jobs.finish(uow.session, claim, _ENDED_EARLY.get(cause, JobState.FAILED), f"{cause}: {detail}")

    def lost(self, claim: Claim, reason: str) -> None:
        """Gradproof's own parts failed: try again, unless that was the last attempt."""
        with self._ending(claim) as (uow, row):
            state = jobs.give_back(uow.session, claim, reason=reason, lost=True)
            if state is JobState.QUEUED:
                uow.ring(claim.queue)
            elif state is JobState.INFRA_FAILED:
                give_up(uow, row, claim, reason, self._settings)

    def returned(self, claim: Claim, reason: str) -> None:
        """The job was not begun, through no fault of its own: it is queued again and no attempt is counted."""
        with self._ending(claim) as (uow, _):
            jobs.give_back(uow.session, claim, reason=reason, lost=False)
            uow.ring(claim.queue)

    def ran(self, claim: Claim, *, torch: str | None, devices: Iterable[str], sandbox: str, import_torch: int) -> None:
        """What the batch of this job runs on. Adds up over batches."""
        with self._owning(claim) as (_, row):
            tool = dict(row.tool)
            known = tool.get("devices", [])
            imports = tool.get("import_torch", 0)
            assert isinstance(known, list)
            assert isinstance(imports, int)
            row.tool = {
                **tool,
                "torch": torch or tool.get("torch"),
                "devices": sorted({*known, *devices}),
                "sandbox": sandbox,
                "import_torch": imports + import_torch,
            }

    def environment(self, claim: Claim, told: Mapping[str, object]) -> None:
        """What came of the requirements of the repository, for the report."""
        with self._owning(claim) as (_, row):
            if row.tool.get("environment") != told:
                row.tool = {**row.tool, "environment": dict(told)}

    def budget_spent(self, claims: Sequence[Claim]) -> None:
        """No further target of the analysis is begun: these jobs and all that wait end, and their targets say why.

        Raises `LeaseLostError`, and ends nothing, if none of the jobs is this worker's any more.
        """
        analysis_id = claims[0].analysis_id
        with self._database.unit_of_work() as uow:
            row = jobs.lock_analysis(uow.session, analysis_id)
            if row is None:
                return
            detail = f"{self._settings.analysis_budget.total_seconds():g} s of the analysis were over"
            ended = [claim.job_id for claim in claims if jobs.finish_if_held(uow.session, claim, detail)]
            if not ended:
                raise LeaseLostError(f"no job of this batch of analysis {analysis_id} is {claims[0].owner}'s any more")
            ended += jobs.cancel_waiting(uow.session, analysis_id, JobKind.PROBE, detail)
            leave_out(uow.session, analysis_id, jobs.jobs_with(uow.session, analysis_id, ended), detail)
            settle_if_done(uow.session, row)

    def left_out(self, claim: Claim, detail: str) -> None:
        """The target of the job was not begun, because the budget of the analysis was spent."""
        with self._fenced(claim) as (uow, _):
            leave_out(uow.session, claim.analysis_id, [claim], detail)

    # ------------------------------------------------------------------------------------------ parts

    def _seconds_left(self, row: AnalysisRow) -> float | None:
        budget = self._settings.analysis_budget
        if not budget or row.static_finished_at is None:
            return None
        return (row.static_finished_at + budget - utc_now()).total_seconds()

    def _circumstances(self, outcome: StaticOutcome, surroundings: Surroundings) -> Circumstances:
        return Circumstances(surroundings, tolerances=outcome.tolerances, bounds=bounds_of(self._settings))

    def _queue_runs(
        self, uow: UnitOfWork, row: AnalysisRow, outcome: StaticOutcome, plans: Sequence[TargetPlan], *, reuse: bool
    ) -> None:
        runnable = any(plan.not_run is None for plan in plans)
        wanted = runnable and outcome.has_examples and bool(self._settings.examples_budget)
        if wanted and not (reuse and reuse_examples(uow.session, row)):
            queue_examples(uow, row, self._settings)
        else:
            queue_probes(uow, row, self._settings)

    @contextmanager
    def _fenced(self, claim: Claim) -> Iterator[tuple[UnitOfWork, str]]:
        assert claim.target_id is not None
        with self._database.unit_of_work() as uow:
            jobs.fence(uow.session, claim, self._settings.lease)
            yield uow, claim.target_id

    @contextmanager
    def _owning(self, claim: Claim) -> Iterator[tuple[UnitOfWork, AnalysisRow]]:
        """Lock the analysis and prove ownership of the job: what the caller then writes, nobody else writes."""
        with self._database.unit_of_work() as uow:
            row = jobs.lock_analysis(uow.session, claim.analysis_id)
            if row is None:
                raise LeaseLostError(f"analysis {claim.analysis_id} is gone")
            jobs.fence(uow.session, claim, self._settings.lease)
            yield uow, row

    @contextmanager
    def _ending(self, claim: Claim) -> Iterator[tuple[UnitOfWork, AnalysisRow]]:
        """The same for a caller that ends the job; settles the analysis if it was the last one."""
        with self._owning(claim) as (uow, row):
            yield uow, row
            settle_if_done(uow.session, row)


def _note_memory(row: AnalysisRow, peak: int | None) -> None:
    """The most bytes of memory that a sandbox of the analysis had in use. The caller holds the lock of the analysis."""
    known = row.tool.get("peak_memory")
    assert known is None or isinstance(known, int)
    if peak is not None and peak > (known or 0):
        row.tool = {**row.tool, "peak_memory": peak}


def leave_no_silence(session: Session, job: Claim | JobRow, cause: str, detail: str) -> None:
    """Say of a target that was not run, or else of each of its checks that brought no result, why that is so."""
    if job.target_id is None:
        return
    job_id = job.id if isinstance(job, JobRow) else job.job_id
    if not checks.has_harness(session, job.target_id):
        checks.record_not_run(session, job.target_id, cause, detail)
        if cause != NOT_RUN:
            return
    recorded = checks.recorded_checks(session, job_id)
    for name in job.checks:
        if name in recorded:
            continue
        result = CheckInfo(
            check=name,
            verdict="error",
            device=device_name(job.device_class),
            summary=f"{cause}: {detail}",
            evidence={"cause": cause},
            duration_s=0.0,
        )
        checks.record_check(session, analysis_id=job.analysis_id, target_id=job.target_id, job_id=job_id, check=result)


def give_up(uow: UnitOfWork, row: AnalysisRow, job: Claim | JobRow, reason: str, settings: Settings) -> None:
    """A job has lost its last attempt: say so of its target, or go on without the examples that it was to run."""
    if job.kind == JobKind.EXAMPLES:
        row.examples_reason = f"{NOT_RUN}: {reason}"
        queue_probes(uow, row, settings)
    else:
        leave_no_silence(uow.session, job, NOT_RUN, reason)


def leave_out(session: Session, analysis_id: str, left: Sequence[Claim | JobRow], detail: str) -> None:
    """Say of targets that were not begun, or of their checks on a further device, that the budget was spent."""
    target_ids = {job.target_id for job in left if job.target_id is not None}
    checks.record_not_begun(session, target_ids, BUDGET_SPENT, detail)
    harnessed = checks.with_harness(session, analysis_id)
    for job in left:
        if job.target_id is None or job.target_id not in harnessed:
            continue
        for name in job.checks:
            checks.record_check(
                session,
                analysis_id=analysis_id,
                target_id=job.target_id,
                job_id=job.id if isinstance(job, JobRow) else job.job_id,
                check=CheckInfo(
                    check=name,
                    verdict="skipped",
                    device=device_name(job.device_class),
                    summary=f"{BUDGET_SPENT}: {detail}",
                    evidence={"cause": BUDGET_SPENT},
                    duration_s=0.0,
                ),
            )


def _plans(
    outcome: StaticOutcome,
    found: Sequence[Finding],
    changed: frozenset[str] | None,
    circumstances: Circumstances | None,
    *,
    backwards: bool,
) -> list[TargetPlan]:
    """The targets in the order of the report, each with its turn.

    `backwards`: nobody waits for what comes first. A base is run from its end, so that it and the change that is
    analysed at the same time meet halfway, and take over from each other what is left.
    """
    declarations = outcome.analysis.targets
    suspicions = Suspicions(found, declarations, outcome.analysis.reaches)
    order = run_order(declarations, suspicions, found, changed)
    turns = {index: turn for turn, index in enumerate(reversed(order) if backwards else order)}
    plans = [_plan(declaration, suspicions, outcome, turns[index]) for index, declaration in enumerate(declarations)]
    if circumstances is None:
        return plans
    closures = outcome.analysis.closures
    return [
        replace(
            plan,
            content_key=content_key(
                plan.declaration,
                closures.get(plan.declaration.path),
                declared=plan.declared,
                hypotheses=plan.hypotheses,
                circumstances=circumstances,
            ),
        )
        for plan in plans
    ]


def _plan(declaration: TargetDeclaration, suspicions: Suspicions, outcome: StaticOutcome, turn: int) -> TargetPlan:
    declared = outcome.declared.get(declaration.name)
    return TargetPlan(
        declaration=declaration,
        declared=None if declared is None else asdict(declared),
        hypotheses=suspicions.of(declaration),
        turn=turn,
        not_run=outcome.not_run(declaration),
    )


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
