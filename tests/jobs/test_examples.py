"""The job that runs a repository's own examples: before the targets, never in their way, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from services.analyses.model import AnalysisOptions, Stage
from services.database.base import FromNow
from services.jobs.model import Claim
from services.jobs.models import JobKind, JobRow, JobState
from services.reports.document import ExampleInfo
from tests.jobs.support import SNAPSHOT, Bench, reading

CALL = {"constructor": "Target1(3)", "inputs": ["torch.randn(2, 3)"], "provenance": "README.md:4", "found_by": "readme"}
TRIED = [ExampleInfo(place="README.md:3", kind="readme", outcome="ran", captured=1)]
SHOWS = replace(reading(targets=3), has_examples=True)


def submit(bench: Bench, options: AnalysisOptions | None = None) -> str:
    analysis_id = bench.analyses.submit(SNAPSHOT, options).analysis_id
    (claim,) = bench.claim()
    bench.results.read(claim, SHOWS)
    return analysis_id


def examples_of(bench: Bench) -> Claim:
    (claim,) = bench.claim()
    assert claim.kind is JobKind.EXAMPLES
    return claim


def expire(bench: Bench, claim: Claim) -> None:
    with bench.database.unit_of_work() as uow:
        lost = update(JobRow).where(JobRow.id == claim.job_id)
        uow.session.execute(lost.values(lease_until=FromNow(timedelta(seconds=-1))))


def test_examples_are_run_before_the_targets(bench: Bench) -> None:
    analysis_id = submit(bench)
    claim = examples_of(bench)
    assert bench.claim() == ()
    work = bench.results.examples_work(claim)
    assert work.snapshot_digest == SNAPSHOT.digest
    assert set(work.targets) == {f"pkg.a:Target{n}" for n in range(3)}
    assert Stage("examples", 0, 1) in bench.analyses.get(analysis_id).progress
    bench.results.examples(claim, TRIED, {"pkg.a:Target1": [CALL], "pkg.a:Unknown": [CALL]})
    assert Stage("examples", 1, 1) in bench.analyses.get(analysis_id).progress
    probes = bench.claim()
    assert [probe.kind for probe in probes] == [JobKind.PROBE] * 3
    plans = bench.results.probe_work(probes).plans.values()
    assert {plan.declaration.qualname: plan.mined for plan in plans} == {
        "Target0": (),
        "Target1": (CALL,),
        "Target2": (),
    }


def test_the_report_tells_what_was_tried(bench: Bench) -> None:
    analysis_id = submit(bench)
    bench.results.examples(examples_of(bench), TRIED, {})
    report = bench.analyses.report(analysis_id)
    assert report.examples == TRIED
    assert report.plan is not None
    assert report.plan.examples is None


@pytest.mark.parametrize("kind", ["no examples", "static only", "no time for them"])
def test_without_a_reason_to_there_is_no_such_job(bench: Bench, kind: str) -> None:
    outcome, options = SHOWS, AnalysisOptions(static_only=kind == "static only")
    if kind == "no examples":
        outcome = reading(targets=3)
    if kind == "no time for them":
        bench = bench.with_settings(examples_budget=timedelta(0))
    bench.analyses.submit(SNAPSHOT, options)
    (claim,) = bench.claim()
    bench.results.read(claim, outcome)
    kinds = [claim.kind for claim in bench.claim()]
    assert kinds == ([] if options.static_only else [JobKind.PROBE] * 3)


def test_examples_that_take_their_sandbox_down_leave_what_was_heard(bench: Bench) -> None:
    analysis_id = submit(bench)
    claim = examples_of(bench)
    ended = (JobState.CRASHED, "out of memory: the sandbox ran out of its memory")
    bench.results.examples(claim, TRIED, {"pkg.a:Target1": [CALL]}, ended=ended)
    probes = bench.claim()
    assert len(probes) == 3
    for probe in probes:
        bench.results.probed(probe)
    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    assert report.plan is not None
    assert report.plan.examples == ended[1]


def _lose(bench: Bench, claim: Claim) -> None:
    bench.results.lost(claim, "the sandbox could not be set up")


def _die(bench: Bench, claim: Claim) -> None:
    expire(bench, claim)
    bench.reconciler.tick()


@pytest.mark.parametrize("end", [_lose, _die])
def test_after_its_last_attempt_the_targets_are_run_all_the_same(
    bench: Bench, end: Callable[[Bench, Claim], None]
) -> None:
    bench = bench.with_settings(max_attempts=2)
    analysis_id = submit(bench)
    first = examples_of(bench)
    end(bench, first)
    second = examples_of(bench)
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    end(bench, second)
    probes = bench.claim()
    assert [probe.kind for probe in probes] == [JobKind.PROBE] * 3
    for probe in probes:
        bench.results.probed(probe)
    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    assert report.plan is not None
    assert report.plan.examples is not None
    assert report.plan.examples.startswith("infrastructure: ")


def test_a_worker_that_lost_the_job_can_not_begin_the_targets_twice(bench: Bench) -> None:
    submit(bench)
    claim = examples_of(bench)
    expire(bench, claim)
    bench.reconciler.tick()
    again = examples_of(bench)
    with pytest.raises(Exception, match="no longer owned"):
        bench.results.examples(claim, TRIED, {})
    bench.results.examples(again, [], {})
    assert len(bench.claim()) == 3


def test_a_cancelled_analysis_begins_no_targets(bench: Bench) -> None:
    analysis_id = submit(bench)
    claim = examples_of(bench)
    bench.analyses.cancel(analysis_id)
    with pytest.raises(Exception, match="no longer owned"):
        bench.results.examples(claim, TRIED, {})
    assert bench.claim() == ()
    assert bench.status(analysis_id) == "cancelled"
