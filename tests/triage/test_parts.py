"""Parts of an analysis page by page: the same as the report holds, in the same order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.accounts.access import SYSTEM, Permission, Subject
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.results import ResultService
from services.checks.pages_repository import CheckSelection, TargetSelection
from services.database import Database
from services.findings.pages_repository import FindingSelection
from services.reports.document import FindingInfo, Report
from services.reports.listing import CursorError, Slice
from services.settings import Settings
from services.triage.errors import FindingNotFoundError, TargetNotFoundError
from tests.jobs.support import Bench, check


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    return Bench(database, service_settings)


@pytest.fixture
def results(database: Database, service_settings: Settings) -> ResultService:
    return ResultService(database, service_settings)


@pytest.fixture
def analysed(bench: Bench) -> str:
    """An analysis of seven targets, of which five ran; every second one fails."""
    bench = replace(bench, settings=bench.settings.model_copy(update={"target_batch": 20}))
    analysis_id = bench.submit_and_read(targets=7, findings=5)
    for number, claim in enumerate(bench.claim()):
        if number > 4:
            bench.results.not_run(claim, "no harness", "nobody knows how to call it")
        else:
            bench.results.check(claim, check("gradcheck", "fail" if number % 2 else "pass"))
            bench.results.check(claim, check("nan_gradient"))
        bench.results.probed(claim)
    assert bench.status(analysis_id) == "finished"
    return analysis_id


def report(bench: Bench, analysis_id: str) -> Report:
    whole = bench.analyses.report(analysis_id)
    assert isinstance(whole, Report)
    return whole


def test_findings_and_targets_come_as_in_the_report(bench: Bench, results: ResultService, analysed: str) -> None:
    whole = report(bench, analysed)
    found: list[FindingInfo] = []
    cursor = None
    while True:
        page = results.findings(SYSTEM, analysed, limit=2, cursor=cursor)
        assert isinstance(page, Slice)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == whole.findings
    targets, cursor = [], None
    while True:
        entries = results.targets(SYSTEM, analysed, limit=3, cursor=cursor)
        targets += [entry.target for entry in entries.items]
        cursor = entries.next_cursor
        if cursor is None:
            break
    assert targets == whole.targets
    assert results.target(SYSTEM, analysed, 3).target == whole.targets[3]
    assert results.target_named(SYSTEM, analysed, whole.targets[4].name).position == 4
    assert results.finding(SYSTEM, analysed, whole.findings[1].fingerprint) == whole.findings[1]


def test_checks_and_the_grid_come_in_the_order_of_their_targets(
    bench: Bench, results: ResultService, analysed: str
) -> None:
    expected = [(each.name, check.check) for each in report(bench, analysed).targets for check in each.checks]
    seen, cursor = [], None
    while True:
        page = results.checks(SYSTEM, analysed, limit=3, cursor=cursor)
        seen += [(item.target, item.check.check) for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == expected
    assert len(seen) == 10
    grid = results.grid(SYSTEM, analysed).items
    assert [(row.name, cell.check) for row in grid for cell in row.cells] == expected
    assert [row.not_run_reason for row in grid].count("no harness") == 2
    assert [len(part.items) for part in (results.grid(SYSTEM, analysed, limit=4),)] == [4]


def test_selections_take_what_fits(results: ResultService, analysed: str) -> None:
    def targets(**wanted: object) -> int:
        return len(results.targets(SYSTEM, analysed, TargetSelection(**wanted)).items)  # type: ignore[arg-type]

    def checks(**wanted: object) -> int:
        return len(results.checks(SYSTEM, analysed, CheckSelection(**wanted)).items)  # type: ignore[arg-type]

    def findings(**wanted: object) -> int:
        return len(results.findings(SYSTEM, analysed, FindingSelection(**wanted)).items)  # type: ignore[arg-type]

    assert (targets(run=True), targets(run=False)) == (5, 2)
    assert (targets(reason="no harness"), targets(verdict="fail")) == (2, 2)
    assert (targets(kind="module"), targets(path="pkg/"), targets(path="pkg"), targets(text="TARGET3")) == (7, 7, 0, 1)
    assert (checks(verdict="fail"), checks(check="nan_gradient"), checks(device="cuda:0")) == (2, 5, 0)
    assert checks(target="pkg.a:Target1") == 2
    everything = findings()
    assert findings(verdict="confirmed") + findings(verdict="not_exercised") + findings(verdict="not_reproduced") == (
        everything
    )
    assert (findings(rule="GP1"), findings(is_new=True), findings(triage="accepted")) == (5, everything, 0)
    assert findings(text="divides BY") == 5


def test_what_is_not_there_and_what_is_foreign_is_said_so(results: ResultService, analysed: str) -> None:
    with pytest.raises(FindingNotFoundError):
        results.finding(SYSTEM, analysed, "nothing")
    for position in (7, -1):
        with pytest.raises(TargetNotFoundError):
            results.target(SYSTEM, analysed, position)
    with pytest.raises(TargetNotFoundError):
        results.target_named(SYSTEM, analysed, "pkg.a:Nothing")
    for cursor in ("x", "1", "1.'", "1.\N{ARABIC-INDIC DIGIT ONE}"):
        with pytest.raises(CursorError):
            results.checks(SYSTEM, analysed, cursor=cursor)
    stranger = Subject("user", "u1", "Eve", frozenset(Permission), user_id="u1")
    for call in (results.findings, results.targets, results.grid, results.checks, results.summary):
        with pytest.raises(AnalysisNotFoundError):
            call(stranger, analysed)


def test_an_analysis_in_one_line_counts_what_its_report_does(
    bench: Bench, results: ResultService, analysed: str
) -> None:
    whole, summary = report(bench, analysed).summary, results.summary(SYSTEM, analysed)
    assert summary.totals is not None
    assert summary.totals.findings.all == whole.findings
    assert summary.totals.findings.new == whole.findings
    assert summary.totals.findings.open == whole.findings
    assert summary.totals.checks == whole.checks
    assert summary.totals.targets.found == whole.targets.found == 7
    assert summary.totals.targets.run == whole.targets.run == 5
    assert summary.totals.targets.not_run == whole.targets.not_run == {"no harness": 2}
    assert summary.totals.suppressed == whole.suppressed == 1
    assert summary.gate_passed is False
    assert [item.id for item in results.summaries(SYSTEM).items] == [analysed]
