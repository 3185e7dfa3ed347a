"""What settled analyses make of the findings of their project, and what the project makes of those of an analysis."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from analyzer.findings import StaticAnalysis
from services.accounts.access import SYSTEM
from services.analyses.model import AnalysisOptions, GitSource, StaticOutcome
from services.analyses.models import AnalysisRow, Purpose
from services.database.base import utc_now
from services.projects.models import ProjectRow
from services.projects.repository import find_readable
from services.triage.model import FindingFilter
from services.triage.models import ProjectFindingRow
from tests.jobs.support import check, finding
from tests.triage.line import READING, Line
from tests.triage.statements import statements


def test_what_is_gone_is_fixed_and_what_returns_has_regressed(line: Line) -> None:
    first = line.analysed(1, 2)
    assert line.states() == {1: ("open", True), 2: ("open", True)}
    assert (line.one(1).first_analysis_id, line.one(1).last_analysis_id) == (first, first)
    second = line.analysed(2, 3)
    assert line.states() == {1: ("fixed", False), 2: ("open", True), 3: ("open", True)}
    assert line.one(1).fixed_at is not None
    assert (line.one(2).first_analysis_id, line.one(2).last_analysis_id) == (first, second)
    third = line.analysed(1, 2, 3)
    assert line.states() == {1: ("regressed", True), 2: ("open", True), 3: ("open", True)}
    assert line.one(1).fixed_at is None
    assert line.kinds(1) == ["regressed", "fixed"]
    assert line.kinds(2) == []
    assert line.triage(third)["fingerprint-1"] == "regressed"
    assert line.inbox.history(SYSTEM, "vision", "fingerprint-1").items[0].details == {"analysis": third}


def test_a_finding_is_on_the_main_line_since_it_last_came_there(line: Line) -> None:
    line.analysed(1)
    came = line.main_since(1)
    assert came is not None
    line.analysed(1)
    assert line.main_since(1) == came
    line.submit(purpose=Purpose.PROPOSAL)
    line.settle((1, 2))
    assert line.main_since(2) is None
    line.analysed(2)
    seen = line.one(2).last_seen_at
    assert line.main_since(2) == seen > line.one(2).first_seen_at
    line.analysed(1, 2)
    assert line.main_since(1) == line.one(1).last_seen_at > came
    assert line.main_since(2) == seen


def test_the_latest_analysis_says_where_a_finding_is(line: Line) -> None:
    line.analysed(1)
    line.submit()
    (claim,) = line.bench.claim()
    moved = replace(finding(1, line=77, settled_by=()), message="divides by x, which can be zero")
    line.bench.results.read(claim, StaticOutcome(StaticAnalysis((moved,), (), (), files=1, lines=100), reading=READING))
    assert (line.one(1).line, line.one(1).message) == (77, "divides by x, which can be zero")


@pytest.mark.parametrize("state", ["accepted", "false_positive"])
def test_what_people_decided_stays_when_a_finding_comes_and_goes(line: Line, state: str) -> None:
    line.analysed(1)
    line.decide(1, state, reason="measured")
    analysis_id = line.analysed(1)
    assert line.triage(analysis_id) == {"fingerprint-1": state}
    assert line.results.summary(SYSTEM, analysis_id).gate_passed is True
    line.analysed()
    assert line.states() == {1: (state, False)}
    line.analysed(1)
    assert line.states() == {1: (state, True)}
    assert line.one(1).reason == "measured"


def test_a_proposal_adds_what_it_brings_and_fixes_nothing(line: Line) -> None:
    base = line.analysed(1, 2)
    proposal = line.submit(base=base)
    line.settle((2, 3))
    assert line.states() == {1: ("open", True), 2: ("open", True), 3: ("open", False)}
    assert line.one(2).last_analysis_id == base
    assert line.one(3).last_analysis_id == proposal
    assert line.inbox.findings(SYSTEM, "vision", FindingFilter(on_main=False)).items[0].fingerprint == "fingerprint-3"
    line.analysed(2, 3)
    assert line.states() == {1: ("fixed", False), 2: ("open", True), 3: ("open", True)}
    # What was fixed and comes back in a proposal is told there, and is not yet so in the project.
    back = line.submit(purpose=Purpose.PROPOSAL)
    line.settle((1, 2, 3))
    assert line.triage(back)["fingerprint-1"] == "regressed"
    assert line.states()[1] == ("fixed", False)


def test_a_base_and_an_overtaken_analysis_change_no_state(line: Line) -> None:
    line.analysed(1)
    line.submit(purpose=Purpose.BASE)
    line.settle((2,))
    assert line.states() == {1: ("open", True), 2: ("open", False)}
    older, newer = line.submit(), line.submit()
    claims = {claim.analysis_id: claim for claim in (*line.bench.claim(), *line.bench.claim())}
    for analysis_id, found in ((newer, (1, 4)), (older, (5,))):
        numbers = tuple(finding(number, line=number, settled_by=()) for number in found)
        line.bench.results.read(
            claims[analysis_id], StaticOutcome(StaticAnalysis(numbers, (), (), files=1, lines=9), reading=READING)
        )
    assert line.states() == {1: ("open", True), 2: ("open", False), 4: ("open", True), 5: ("open", False)}
    with line.bench.database.reading() as session:
        project = find_readable(session, SYSTEM, "vision")
        assert project is not None
        assert project.baseline_id == newer


def stands(line: Line, analysis_id: str) -> tuple[str, bool]:
    """The purpose of an analysis, and whether changes are compared with it."""
    with line.bench.database.reading() as session:
        project = find_readable(session, SYSTEM, "vision")
        assert project is not None
        return session.get_one(AnalysisRow, analysis_id).purpose, project.baseline_id == analysis_id


def test_an_old_analysis_that_is_run_again_takes_nothing_back(line: Line) -> None:
    first, second = line.analysed(1, 2), line.analysed(2)
    again = line.bench.analyses.rerun(first).analysis_id
    line.settle((1, 2, 3))
    assert stands(line, again) == ("base", False)
    assert stands(line, second) == ("main", True)
    assert line.states() == {1: ("fixed", False), 2: ("open", True), 3: ("open", False)}
    # The present one decides when it is run again, whatever else failed meanwhile.
    line.bench.analyses.cancel(line.submit())
    present = line.bench.analyses.rerun(second).analysis_id
    line.settle((1, 2))
    assert stands(line, present) == ("main", True)
    assert line.states()[1] == ("regressed", True)
    newer = line.submit()
    overtaken = line.bench.analyses.rerun(present).analysis_id
    line.settle((4,))
    line.settle((1, 2))
    assert (stands(line, newer), stands(line, overtaken)) == (("main", True), ("base", False))
    # One that came to nothing is made up for.
    failed = line.submit()
    line.bench.analyses.cancel(failed)
    made_up_for = line.bench.analyses.rerun(failed).analysis_id
    line.settle((5,))
    assert stands(line, made_up_for) == ("main", True)
    proposal = line.submit(base=first)
    line.settle(())
    assert stands(line, line.bench.analyses.rerun(proposal).analysis_id) == ("proposal", False)


def test_another_branch_is_not_the_main_line(line: Line) -> None:
    address = "https://github.com/example/vision"

    def purpose(ref: str | None) -> str:
        submitted = line.bench.analyses.submit(GitSource(address, ref), project="vision")
        return stands(line, submitted.analysis_id)[0]

    assert purpose("work") == "main"  # nobody knows which branch is the main one
    with line.bench.database.unit_of_work() as uow:
        uow.session.execute(update(ProjectRow).values(default_branch="trunk"))
    refs = ("trunk", "refs/heads/trunk", "HEAD", None, "work", "v1.0", "c" * 40)
    assert [purpose(ref) for ref in refs] == ["main"] * 4 + ["proposal"] * 3


@pytest.mark.parametrize(
    ("options", "reading"),
    [
        (AnalysisOptions(rules=("GP2",)), READING),
        (AnalysisOptions(ignore=("GP101",)), READING),
        (AnalysisOptions(), READING | {"exclude": ["pkg/"]}),
        (AnalysisOptions(), READING | {"include": ["other/"]}),
        (AnalysisOptions(), READING | {"rules": {"GP101": "off"}}),
        (AnalysisOptions(), READING | {"per_path": [{"paths": ["pkg/a.py"], "ignore": ["GP101"]}]}),
        (AnalysisOptions(), {}),
    ],
)
def test_what_was_not_looked_for_is_not_fixed(line: Line, options: AnalysisOptions, reading: dict[str, object]) -> None:
    line.analysed(1)
    line.submit(options=options)
    line.settle((), reading=reading)
    expected = ("open", True) if reading else ("fixed", False)
    assert line.states() == {1: expected}


def test_a_file_that_can_not_be_read_fixes_nothing_in_it(line: Line) -> None:
    line.analysed(1)
    line.submit()
    (claim,) = line.bench.claim()
    broken = replace(finding(2, line=1, settled_by=()), rule="GP001", name="syntax-error")
    line.bench.results.read(claim, StaticOutcome(StaticAnalysis((broken,), (), (), files=1, lines=9), reading=READING))
    assert line.states()[1] == ("open", True)


def test_a_comment_in_the_source_silences_and_does_not_fix(line: Line) -> None:
    line.analysed(1)
    line.analysed(suppressed=(1,))
    assert line.states() == {1: ("open", False)}
    assert line.kinds(1) == ["suppressed"]


def test_a_failing_check_is_fixed_when_it_passes_and_not_when_it_was_not_run(line: Line) -> None:
    line.submit()
    line.settle((), check("gradcheck", "fail", line=205))
    (found,) = line.inbox.findings(SYSTEM, "vision").items
    assert (found.rule, found.state, found.on_main) == ("gradcheck", "open", True)
    for result in (check("nan_gradient"), check("gradcheck", "inconclusive"), check("gradcheck", "skipped")):
        line.submit(options=AnalysisOptions(reuse=False))
        line.settle((), result)
        assert line.inbox.finding(SYSTEM, "vision", found.fingerprint).state == "open"
    line.submit(options=AnalysisOptions(static_only=True))
    line.settle()
    still = line.inbox.finding(SYSTEM, "vision", found.fingerprint)
    assert (still.state, still.verdict) == ("open", "confirmed")
    line.submit(options=AnalysisOptions(reuse=False))
    line.settle((), check("gradcheck"))
    assert line.inbox.finding(SYSTEM, "vision", found.fingerprint).state == "fixed"


def test_an_acceptance_ends_after_so_many_analyses(line: Line) -> None:
    line.analysed(1)
    line.decide(1, "accepted", until_occurrences=2, reason="soon")
    for number in (1, 2):
        assert line.triage(line.analysed(1)) == {"fingerprint-1": "accepted"}
        assert line.one(1).occurrences == number
    third = line.analysed(1)
    assert line.triage(third) == {"fingerprint-1": "open"}
    assert line.results.summary(SYSTEM, third).gate_passed is False
    assert (line.one(1).state, line.one(1).reason, line.one(1).until.occurrences) == ("open", "", None)
    assert line.kinds(1) == ["expired"]


def test_an_acceptance_ends_with_a_newer_torch_and_at_its_date(line: Line) -> None:
    line.analysed(1, 2)
    line.decide(1, "accepted", until_torch="2.13.0")
    line.decide(2, "accepted", until_date=utc_now() + timedelta(days=1))
    for torch, state in (("2.13.0+cu126", "accepted"), ("2.9.1", "accepted"), ("2.14.0a0", "open")):
        line.submit(options=AnalysisOptions(reuse=False))
        line.settle((1, 2), check("nan_gradient"), torch=torch)
        assert line.one(1).state == state
    assert line.one(2).state == "accepted"
    line.decide(2, "accepted", until_date=utc_now() - timedelta(seconds=1))
    line.analysed(1, 2)
    assert line.one(2).state == "open"


def test_a_failed_or_cancelled_analysis_says_nothing_about_the_project(line: Line) -> None:
    line.analysed(1)
    line.bench.analyses.cancel(line.submit())
    assert line.states() == {1: ("open", True)}


def test_analyses_without_a_project_are_kept_out(line: Line) -> None:
    line.bench.submit_and_read(targets=0)
    with line.bench.database.reading() as session:
        assert session.query(ProjectFindingRow).count() == 0


def test_many_findings_are_not_as_many_statements(line: Line) -> None:
    line.analysed(*range(2000))
    with statements(line.bench.database) as made:
        line.analysed(*range(1000, 3000))
    assert 0 < len(made) < 100
    facets = line.inbox.facets(SYSTEM, "vision")
    assert facets.states == {"open": 2000, "fixed": 1000}
