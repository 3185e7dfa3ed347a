"""Failing checks of a change, against a base that was really analysed: kept with the checks, heeded by the gate."""

from __future__ import annotations

import pytest

from analyzer.findings import StaticAnalysis
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.database import Database
from services.reports.document import CheckInfo, Harness, Report
from services.reuse.keys import Surroundings
from services.settings import Settings
from tests.jobs.support import SNAPSHOT, Bench, check, target

HARNESS = Harness(source="mined", grade="A", constructor="Target()", inputs=["x"], provenance="a.py:1")


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    return Bench(database, service_settings)


def analysed(
    bench: Bench, results: dict[int, CheckInfo], *, base: str | None = None, closure: str = "code", reuse: bool = False
) -> Report:
    """The report of an analysis whose targets have these results; equal closures are equal code."""
    options = AnalysisOptions(reuse=reuse, checks=("gradcheck",))
    analysis_id = bench.analyses.submit(SNAPSHOT, options, project="vision", base=base).analysis_id
    (claim,) = bench.claim()
    targets = tuple(target(number) for number in results)
    outcome = StaticOutcome(StaticAnalysis((), (), targets, files=1, lines=10, closures={"pkg/a.py": closure}))
    bench.results.read(claim, outcome, surroundings=Surroundings("probe", "environment"))
    claims = bench.claim()
    plans = bench.results.probe_work(claims).plans if claims else {}
    for claim in claims:
        bench.results.ran(claim, torch="2.13.0", devices=["cpu"], sandbox="off", import_torch=1)
        bench.results.harness(claim, HARNESS)
        number = int(plans[claim.job_id].declaration.qualname.removeprefix("Target"))
        bench.results.check(claim, results[number])
        bench.results.probed(claim)
    report = bench.analyses.report(analysis_id)
    assert isinstance(report, Report)
    assert report.analysis.status == "finished"
    return report


def classes(report: Report) -> dict[str, str | None]:
    return {target.name: target.checks[0].baseline_class for target in report.targets}


FAILS, PASSES = check("gradcheck", "fail"), check("gradcheck")


def test_only_what_the_change_broke_fails_the_gate(bench: Bench) -> None:
    base = analysed(bench, {0: FAILS, 1: PASSES, 2: check("gradcheck", "skipped")})
    assert classes(base) == dict.fromkeys(("pkg.a:Target0", "pkg.a:Target1", "pkg.a:Target2"))
    same = analysed(bench, {0: FAILS, 1: PASSES, 2: FAILS}, base=base.analysis.id, closure="changed")
    assert classes(same) == {
        "pkg.a:Target0": "already_failing",
        "pkg.a:Target1": None,
        "pkg.a:Target2": "not_comparable",
    }
    assert same.gate.passed
    broken = analysed(bench, {0: FAILS, 1: FAILS, 3: FAILS}, base=base.analysis.id, closure="changed again")
    assert classes(broken) == {"pkg.a:Target0": "already_failing", "pkg.a:Target1": "new", "pkg.a:Target3": "new"}
    assert not broken.gate.passed
    explanation = broken.gate.conditions[0].explanation
    assert explanation.startswith("2 of 3 fail and are new")
    assert "(1 already failing on the base)" in explanation
    # They are kept with the checks, and not among their evidence.
    assert broken.targets[1].checks[0].evidence == {"trials": 3}


def test_the_same_code_with_another_verdict_is_flaky(bench: Bench) -> None:
    base = analysed(bench, {0: PASSES})
    head = analysed(bench, {0: FAILS}, base=base.analysis.id)
    assert classes(head) == {"pkg.a:Target0": "flaky"}
    assert head.gate.passed
    # Once it is known to be flaky, a change of its code is judged by the base alone.
    assert classes(analysed(bench, {0: FAILS}, base=base.analysis.id, closure="other")) == {"pkg.a:Target0": "new"}


def test_a_class_is_not_taken_over_with_a_result(bench: Bench) -> None:
    passing, failing = analysed(bench, {0: PASSES}), analysed(bench, {0: FAILS}, closure="changed")
    assert classes(analysed(bench, {0: FAILS}, base=passing.analysis.id, closure="changed")) == {"pkg.a:Target0": "new"}
    taken = analysed(bench, {0: FAILS}, base=failing.analysis.id, closure="changed", reuse=True)
    assert taken.targets[0].reused
    assert classes(taken) == {"pkg.a:Target0": "already_failing"}


def test_an_analysis_waits_for_the_end_of_its_base(bench: Bench) -> None:
    base = bench.submit_and_read(targets=1, findings=0)
    head = bench.analyses.submit(SNAPSHOT, base=base).analysis_id
    (probe,) = bench.claim()
    (static,) = bench.claim()
    bench.results.read(static, StaticOutcome(StaticAnalysis((), (), (), files=1, lines=10)))
    assert bench.status(head) == "running"
    bench.reconciler.tick()
    assert bench.status(head) == "running"
    bench.results.probed(probe)
    assert bench.status(base) == "finished"
    bench.reconciler.tick()
    assert bench.status(head) == "finished"
