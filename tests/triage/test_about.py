"""What a page tells around findings and targets: what was left out, what runs now, what stands before and after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.accounts.access import SYSTEM, Permission, Subject
from services.analyses.about import AboutService
from services.analyses.errors import AnalysisNotFoundError, ReportUnavailableError
from services.analyses.model import GitSource
from services.database import Database
from services.findings.pages_repository import FindingSelection
from services.settings import Settings
from tests.jobs.support import Bench, check

NOBODY = Subject("user", "u", "nobody", frozenset(Permission), user_id="u")


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    opened = Bench(database, service_settings)
    return replace(opened, settings=opened.settings.model_copy(update={"target_batch": 20}))


@pytest.fixture
def about(database: Database, service_settings: Settings) -> AboutService:
    return AboutService(database, service_settings)


@pytest.fixture
def analysed(bench: Bench) -> str:
    """Seven targets: two lack a package, one could not be called, four ran; five findings."""
    analysis_id = bench.submit_and_read(targets=7, findings=5)
    for number, claim in enumerate(bench.claim()):
        if number < 2:
            bench.results.not_run(claim, "missing dependency", "No module named 'timm' (on PyPI: timm)")
        elif number == 2:
            bench.results.not_run(claim, "inputs unsolved", "no shape fits")
        else:
            bench.results.check(claim, check("gradcheck", "fail" if number == 3 else "pass"))
            bench.results.check(claim, check("hvp", "skipped"))
        bench.results.probed(claim)
    assert bench.status(analysis_id) == "finished"
    return analysis_id


def test_the_particulars_are_those_of_the_whole_report(bench: Bench, about: AboutService, analysed: str) -> None:
    told = about.particulars(SYSTEM, analysed)
    whole = bench.analyses.report(analysed)
    assert told.analysis == whole.analysis
    assert told.snapshot == whole.snapshot
    assert told.tool == whole.tool
    assert told.gate == whole.gate
    assert list(told.missing) == whole.missing
    assert {group.reason: group.count for group in told.not_run} == whole.summary.targets.not_run
    assert [group.reason for group in told.not_run] == ["missing dependency", "inputs unsolved"]
    assert told.not_run[1].first.not_run_detail == "no shape fits"
    assert told.not_eligible == ()
    assert told.verdicts == {"gradcheck": {"fail": 1, "pass": 3}, "hvp": {"skipped": 4}}


def test_checks_that_say_nothing_share_a_line_by_reason(about: AboutService, analysed: str) -> None:
    (unsaid,) = about.unsaid_checks(SYSTEM, analysed)
    assert (unsaid.check, unsaid.verdict, unsaid.reason, unsaid.count) == ("hvp", "skipped", "hvp: skipped", 4)


def test_a_finding_has_neighbours_among_those_that_are_wanted(about: AboutService, analysed: str) -> None:
    first = about.neighbours(SYSTEM, analysed, "fingerprint-0")
    assert first is not None
    assert (first.number, first.before, first.after) == (1, None, "fingerprint-1")
    assert first.total == about.count_findings(SYSTEM, analysed)
    alone = about.neighbours(SYSTEM, analysed, "fingerprint-2", FindingSelection(text="FINGERPRINT-2"))
    assert alone is not None
    assert (alone.number, alone.total, alone.before, alone.after) == (1, 1, None, None)
    assert about.neighbours(SYSTEM, analysed, "fingerprint-2", FindingSelection(severity="note")) is None
    assert about.rules(SYSTEM, analysed)[0][:2] == ("GP101", "unprotected-division")


def test_what_runs_now_is_told_while_it_runs(bench: Bench, about: AboutService) -> None:
    analysis_id = bench.submit_and_read(targets=7, findings=0)
    assert about.running(SYSTEM, analysis_id) == ()
    claims = bench.claim()
    running = about.running(SYSTEM, analysis_id)
    assert len(running) == 5  # of seven: a page names a few
    assert {kind for kind, _ in running} == {"probe"}
    assert all(name.startswith("pkg.a:Target") for _, name in running)
    for claim in claims:
        bench.results.probed(claim)
    assert about.running(SYSTEM, analysis_id) == ()


def test_who_may_not_read_it_finds_nothing(bench: Bench, about: AboutService, analysed: str) -> None:
    for call in (about.particulars, about.running, about.unsaid_checks, about.count_findings, about.rules):
        with pytest.raises(AnalysisNotFoundError):
            call(NOBODY, analysed)
    with pytest.raises(AnalysisNotFoundError):
        about.neighbours(NOBODY, analysed, "fingerprint-0")
    assert not about.may(NOBODY, analysed, Permission.READ)
    assert about.may(SYSTEM, analysed, Permission.SUBMIT)
    waiting = bench.analyses.submit(GitSource("https://github.com/example/vision")).analysis_id
    with pytest.raises(ReportUnavailableError):
        about.particulars(SYSTEM, waiting)
