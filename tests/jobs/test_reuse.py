"""What was found out before is taken over, where nothing that it rests on has changed: nothing is run for it."""

from __future__ import annotations

from dataclasses import replace

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.jobs.models import JobKind
from services.reports.document import CheckVerdict, ExampleInfo, Harness
from services.reuse.keys import Surroundings
from services.snapshots.model import Snapshot
from tests.jobs.support import SNAPSHOT, Bench, check, reading

SURROUNDINGS = Surroundings(probe="probe", environment="environment")
HARNESS = Harness(source="synthesised", grade="C", constructor="T()", inputs=["torch.randn(2)"], provenance="names")
CHECKED = AnalysisOptions(checks=("gradcheck",))


def outcome(closure: str = "closure", *, examples: bool = False) -> StaticOutcome:
    read = reading(2, 1)
    analysis = replace(read.analysis, closures={target.path: closure for target in read.analysis.targets})
    return replace(read, analysis=analysis, has_examples=examples)


def submit_and_read(
    bench: Bench,
    read: StaticOutcome,
    *,
    project: str | None = None,
    options: AnalysisOptions = CHECKED,
    snapshot: Snapshot = SNAPSHOT,
    surroundings: Surroundings | None = SURROUNDINGS,
) -> str:
    analysis_id = bench.analyses.submit(snapshot, options, project=project).analysis_id
    (claim,) = bench.claim()
    bench.results.read(claim, read, surroundings=surroundings)
    return analysis_id


def run_all(bench: Bench, verdict: CheckVerdict = "pass") -> int:
    """Run what is queued; how many targets that were."""
    count = 0
    while claims := bench.claim():
        for claim in claims:
            bench.results.harness(claim, HARNESS)
            bench.results.check(claim, check("gradcheck", verdict))
            bench.results.probed(claim)
            count += 1
    return count


def test_an_unchanged_target_is_not_run_again_and_its_results_are_there(bench: Bench) -> None:
    first = submit_and_read(bench, outcome())
    assert run_all(bench) == 2
    second = submit_and_read(bench, outcome())
    assert run_all(bench) == 0
    assert bench.status(second) == "finished"
    before, after = bench.analyses.report(first).targets, bench.analyses.report(second).targets
    assert [target.checks for target in after] == [target.checks for target in before]
    assert [target.harness for target in after] == [HARNESS, HARNESS]
    assert [target.reused for target in before] == [False, False]
    assert [target.reused for target in after] == [True, True]


def test_a_third_analysis_finds_what_the_second_took_over(bench: Bench) -> None:
    for _ in range(2):
        submit_and_read(bench, outcome())
        run_all(bench)
    third = submit_and_read(bench, outcome())
    assert run_all(bench) == 0
    assert bench.status(third) == "finished"


def test_changed_source_other_surroundings_and_other_projects_are_run(bench: Bench) -> None:
    submit_and_read(bench, outcome())
    run_all(bench)
    submit_and_read(bench, outcome("another closure"))
    assert run_all(bench) == 2
    submit_and_read(bench, outcome(), surroundings=Surroundings("probe", "another torch"))
    assert run_all(bench) == 2
    submit_and_read(bench, outcome(), surroundings=None)
    assert run_all(bench) == 2
    submit_and_read(bench, outcome(), project="somebody-else")
    assert run_all(bench) == 2


def test_who_asks_for_it_has_everything_run_again(bench: Bench) -> None:
    first = submit_and_read(bench, outcome())
    run_all(bench, "fail")
    submit_and_read(bench, outcome(), options=AnalysisOptions(checks=("gradcheck",), reuse=False))
    assert run_all(bench) == 2
    newest = submit_and_read(bench, outcome())
    assert run_all(bench) == 0
    assert [target.checks[0].verdict for target in bench.analyses.report(newest).targets] == ["pass", "pass"]
    assert bench.analyses.rerun(first).created
    (claim,) = bench.claim()
    bench.results.read(claim, outcome(), surroundings=SURROUNDINGS)
    assert run_all(bench) == 2


def test_an_error_is_tried_again(bench: Bench) -> None:
    submit_and_read(bench, outcome())
    run_all(bench, "error")
    submit_and_read(bench, outcome())
    assert run_all(bench) == 2


def test_a_reason_for_not_running_is_taken_over_unless_time_was_the_reason(bench: Bench) -> None:
    submit_and_read(bench, outcome())
    for claim, reason in zip(bench.claim(), ("inputs unsolved", "timed out"), strict=True):
        bench.results.not_run(claim, reason, "why")
        bench.results.probed(claim)
    second = submit_and_read(bench, outcome())
    (claim,) = bench.claim()
    bench.results.not_run(claim, "timed out", "again")
    bench.results.probed(claim)
    assert [target.not_run_reason for target in bench.analyses.report(second).targets] == [
        "inputs unsolved",
        "timed out",
    ]


def test_the_examples_of_an_unchanged_snapshot_are_not_run_again(bench: Bench) -> None:
    tried = [ExampleInfo(place="README.md:3", kind="readme", outcome="ran", detail="", captured=1)]
    call = {"constructor": "T()", "inputs": ["torch.randn(2)"], "provenance": "README.md:3", "found_by": "readme"}
    submit_and_read(bench, outcome(examples=True))
    (claim,) = bench.claim()
    assert claim.kind is JobKind.EXAMPLES
    bench.results.examples(claim, tried, {"pkg.a:Target0": [call]})
    assert run_all(bench) == 2

    second = submit_and_read(bench, outcome(examples=True))
    assert run_all(bench) == 0
    assert bench.analyses.report(second).examples == tried

    other = replace(SNAPSHOT, digest=f"sha256:{'b' * 64}")
    submit_and_read(bench, outcome(examples=True), snapshot=other)
    (claim,) = bench.claim()
    assert claim.kind is JobKind.EXAMPLES
    bench.results.examples(claim, tried, {"pkg.a:Target0": [call]})
    assert run_all(bench) == 0


def test_a_call_recorded_anew_has_its_target_run_again(bench: Bench) -> None:
    submit_and_read(bench, outcome(examples=True))
    (claim,) = bench.claim()
    bench.results.examples(claim, [], {})
    assert run_all(bench) == 2
    submit_and_read(bench, outcome(examples=True), snapshot=replace(SNAPSHOT, digest=f"sha256:{'b' * 64}"))
    (claim,) = bench.claim()
    call = {"constructor": "T()", "inputs": ["torch.randn(2)"], "provenance": "README.md:3", "found_by": "readme"}
    bench.results.examples(claim, [], {"pkg.a:Target0": [call]})
    assert run_all(bench) == 1
