"""In which order targets are run, and what becomes of those that the budget of the analysis does not reach."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import update

from analyzer.findings import Severity, StaticAnalysis, TargetDeclaration
from services.analyses.model import StaticOutcome
from services.analyses.models import AnalysisRow
from services.analyses.planning import run_order
from services.database.base import FromNow
from services.findings.hypotheses import Suspicions
from services.reports.document import Harness
from tests.jobs.support import SNAPSHOT, Bench, check, finding, target

HARNESS = Harness(source="synthesised", grade="C", constructor="T()", inputs=["torch.randn(2)"], provenance="names")


def elsewhere(number: int, path: str) -> TargetDeclaration:
    return replace(target(number), path=path, name=f"{path}:Target{number}")


def test_what_is_suspected_comes_first_by_severity_then_what_changed_then_the_rest_by_file() -> None:
    targets = [elsewhere(0, "pkg/c.py"), elsewhere(0, "pkg/b.py"), target(0), target(1), target(2), target(3)]
    findings = [replace(finding(1, line=13), severity=Severity.WARNING), finding(3, line=33)]
    suspicions = Suspicions(findings, targets)
    order = [targets[index].name for index in run_order(targets, suspicions, findings, {"pkg/c.py"})]
    assert order == ["pkg.a:Target3", "pkg.a:Target1", "pkg/c.py:Target0", "pkg.a:Target2", "pkg.a:Target0",
                     "pkg/b.py:Target0"]  # fmt: skip
    unknown = [targets[index].name for index in run_order(targets, suspicions, findings)]
    assert unknown[2:] == ["pkg.a:Target2", "pkg.a:Target0", "pkg/b.py:Target0", "pkg/c.py:Target0"]


def test_jobs_are_claimed_in_that_order_and_the_report_keeps_that_of_the_source(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=2)
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    outcome = StaticOutcome(
        StaticAnalysis((finding(2, line=23),), (), tuple(target(number) for number in range(4)), files=1, lines=40)
    )
    bench.results.read(claim, outcome)
    claims = bench.claim()
    plans = bench.results.probe_work(claims).plans
    assert [plans[claim.job_id].declaration.qualname for claim in claims] == ["Target2", "Target3"]
    names = [item.name for item in bench.analyses.report(analysis_id).targets]
    assert names == [f"pkg.a:Target{number}" for number in range(4)]


def spend(bench: Bench, analysis_id: str) -> None:
    with bench.database.unit_of_work() as uow:
        row = update(AnalysisRow).where(AnalysisRow.id == analysis_id)
        uow.session.execute(row.values(static_finished_at=FromNow(timedelta(hours=-1))))


def test_a_spent_budget_ends_what_was_not_begun_and_the_report_counts_it(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=1, analysis_budget=timedelta(minutes=30))
    analysis_id = bench.submit_and_read(targets=4, findings=0)
    (running,) = bench.claim()
    bench.results.started(running)
    bench.results.harness(running, HARNESS)
    assert 0 < (bench.results.probe_work([running]).seconds_left or 0) <= 1800
    spend(bench, analysis_id)
    late = bench.claim()
    assert (bench.results.probe_work(late).seconds_left or 0) <= 0
    bench.results.budget_spent(late)
    assert bench.claim() == ()
    assert bench.status(analysis_id) == "running", "what has begun goes on"
    bench.results.check(running, check())
    bench.results.probed(running)
    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    assert report.summary.targets.not_run == {"budget spent": 3}
    plan = report.plan
    assert plan is not None
    assert (plan.budget_s, plan.planned, plan.run, plan.left_out) == (1800.0, 4, 1, {"budget spent": 3})


def test_a_further_device_that_the_budget_does_not_reach_says_so_for_its_checks(bench: Bench) -> None:
    bench = bench.with_settings(gpu_classes=("h200",))
    analysis_id = bench.submit_and_read(targets=1, findings=0)
    (claim,) = bench.claim()
    bench.results.harness(claim, HARNESS)
    bench.results.probed(claim)
    spend(bench, analysis_id)
    bench.results.budget_spent(bench.claim("gpu.h200"))
    (item,) = bench.analyses.report(analysis_id).targets
    assert item.not_run_reason is None
    assert [(result.check, result.verdict) for result in item.checks] == [("device_compare", "skipped")]


def test_without_a_budget_nothing_runs_out(bench: Bench) -> None:
    bench = bench.with_settings(analysis_budget=timedelta(0))
    analysis_id = bench.submit_and_read(targets=1)
    spend(bench, analysis_id)
    assert bench.results.probe_work(bench.claim()).seconds_left is None
    plan = bench.analyses.report(analysis_id).plan
    assert plan is not None
    assert plan.budget_s is None


def test_what_has_no_gradient_to_look_at_is_not_part_of_the_plan(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    metric = replace(target(1), why_not="metric")
    bench.results.read(claim, StaticOutcome(StaticAnalysis((), (), (target(0), metric), files=1, lines=40)))
    (probe,) = bench.claim()
    bench.results.harness(probe, HARNESS)
    bench.results.check(probe, check("gradcheck", "pass"))
    bench.results.probed(probe)
    report = bench.analyses.report(analysis_id)
    assert report.plan is not None
    assert (report.plan.planned, report.plan.run) == (1, 1)
    assert report.summary.targets.model_dump() == {"found": 1, "run": 1, "not_run": {}, "not_eligible": {"metric": 1}}


def test_checks_that_the_time_of_a_target_did_not_suffice_for_are_counted(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    (probe,) = bench.claim()
    bench.results.harness(probe, HARNESS)
    bench.results.check(probe, check("gradcheck", "pass"))
    left_out = check("gradgradcheck", "skipped").model_copy(update={"evidence": {"left_out": "budget"}})
    bench.results.check(probe, left_out)
    bench.results.probed(probe)
    plan = bench.analyses.report(analysis_id).plan
    assert plan is not None
    assert plan.checks_left_out == {"gradgradcheck": 1}
