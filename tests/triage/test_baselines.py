"""What was analysed before is not analysed again: a base of the same commit, a target that the other one has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import update

from services.accounts.access import SYSTEM
from services.analyses.model import AnalysisOptions, GitSource
from services.analyses.models import AnalysisRow, Purpose
from services.analyses.occasion import Occasion
from services.jobs.model import Claim
from tests.jobs.support import SNAPSHOT, check
from tests.jobs.test_reuse import HARNESS, SURROUNDINGS, outcome
from tests.triage.line import Line

COMMIT = "9f" * 20
CHECKED = AnalysisOptions(checks=("gradcheck",))


def fetched(line: Line, options: AnalysisOptions = CHECKED, commit: str = COMMIT, torch: str = "2.13.0") -> str:
    """A finished analysis of a commit."""
    source = replace(SNAPSHOT, source=replace(SNAPSHOT.source, kind="git", commit=commit))
    analysis_id = line.bench.analyses.submit(source, options, project="vision").analysis_id
    line.settle((1,), check("gradcheck"), torch=torch)
    return str(analysis_id)


def test_a_base_of_the_same_commit_is_not_analysed_again(line: Line) -> None:
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED) is None
    first = fetched(line)
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED) == first
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED.model_copy(update={"reuse": False})) == first
    newer = fetched(line)
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED) == newer


def test_one_that_was_made_in_another_way_is_no_base(line: Line) -> None:
    fetched(line)
    assert line.results.baseline(SYSTEM, "vision", "8e" * 20, CHECKED) is None
    assert line.results.baseline(SYSTEM, "vision", COMMIT, AnalysisOptions()) is None
    assert line.results.baseline(SYSTEM, "other", COMMIT, CHECKED) is None
    fetched(line, commit="7d" * 20, torch="2.14.0")  # workers run a newer torch now
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED) is None
    other = fetched(line, torch="2.14.0")
    with line.bench.database.unit_of_work() as uow:
        row = uow.session.get_one(AnalysisRow, other)
        uow.session.execute(update(AnalysisRow).values(tool={**row.tool, "version": "0.0.1"}))
    assert line.results.baseline(SYSTEM, "vision", COMMIT, CHECKED) is None


def both_waiting(line: Line, head: AnalysisOptions = CHECKED) -> tuple[str, str]:
    """A base and a change of the same source, both read, the two targets of each waiting."""
    made: list[str] = []
    for purpose, options in ((Purpose.BASE, CHECKED), (Purpose.PROPOSAL, head)):
        base = made[0] if made else None
        occasion = Occasion(purpose=purpose)
        submitted = line.bench.analyses.submit(SNAPSHOT, options, project="vision", base=base, occasion=occasion)
        made.append(str(submitted.analysis_id))
    for claim in (*line.bench.claim(), *line.bench.claim()):
        line.bench.results.read(claim, outcome(), surroundings=SURROUNDINGS)
    return made[0], made[1]


def run(line: Line, claims: Sequence[Claim]) -> list[str]:
    """Run what of a batch still has to be run; the names of the targets."""
    known = line.bench.results.take_over(claims)
    left = [claim for claim in claims if claim.job_id not in known]
    plans = line.bench.results.probe_work(left).plans if left else {}
    for claim in left:
        line.bench.results.harness(claim, HARNESS)
        line.bench.results.check(claim, check("gradcheck"))
        line.bench.results.probed(claim)
    return [plans[claim.job_id].declaration.qualname for claim in left]


def test_a_change_takes_over_what_its_base_has_run_meanwhile(line: Line) -> None:
    base, head = both_waiting(line)
    batches = {batch[0].analysis_id: batch for batch in (line.bench.claim(), line.bench.claim())}
    assert len(run(line, batches[base])) == 2
    assert run(line, batches[head]) == []
    assert line.bench.status(head) == "finished"
    report = line.bench.analyses.report(head)
    assert [target.reused for target in report.targets] == [True, True]
    assert {check.verdict for target in report.targets for check in target.checks} == {"pass"}


def test_a_base_is_run_from_its_end_so_that_both_meet_halfway(line: Line) -> None:
    line.bench = line.bench.with_settings(target_batch=1)
    base, head = both_waiting(line)
    ran = [run(line, line.bench.claim()) for _ in range(4)]
    assert sorted(name for names in ran for name in names) == ["Target0", "Target1"]
    assert [len(names) for names in ran] == [1, 1, 0, 0]  # each runs one, and takes the other over
    line.bench.reconciler.tick()
    assert (line.bench.status(base), line.bench.status(head)) == ("finished", "finished")


def test_who_wants_everything_run_takes_nothing_over(line: Line) -> None:
    base, head = both_waiting(line, CHECKED.model_copy(update={"reuse": False}))
    batches = {batch[0].analysis_id: batch for batch in (line.bench.claim(), line.bench.claim())}
    assert (len(run(line, batches[base])), len(run(line, batches[head]))) == (2, 2)


@pytest.mark.parametrize("ref", ["main", COMMIT[:12]])
def test_a_branch_is_fetched_first(line: Line, ref: str) -> None:
    fetched(line)
    source = GitSource("https://github.com/example/vision", ref)
    assert line.bench.analyses.submit(source, CHECKED, project="vision").created
