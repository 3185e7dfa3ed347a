"""One comment: silent when there is nothing new, short when it is over, equal when nothing has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.forges.markdown import size
from services.forges.review import Review
from services.forges.summary_comment import Summary, is_summary, summary
from services.gates import GatePolicy
from tests.forges.reviews import GITHUB, GITLAB, changed, clean, found, many, review, silent
from tests.reports.samples import failing, hostile_report, report_of, target
from tests.reports.test_markdown import outside_code

PROJECT = "01jc0000000000000000000000"


def written(of: Review, *, said_before: bool = False, always: bool = False) -> Summary | None:
    return summary(of, project=PROJECT, number=7, said_before=said_before, always=always)


def body(of: Review, *, said_before: bool = False, always: bool = False) -> str:
    made = written(of, said_before=said_before, always=always)
    assert made is not None
    return made.body


def test_it_is_silent_when_there_is_nothing_new() -> None:
    assert written(review(clean())) is None
    assert written(review(changed(found(), is_new=False))) is None
    assert written(review(changed(found(), triage="accepted"))) is None
    assert written(review(changed(found(), severity="note"))) is None
    assert written(review(policy=GatePolicy(modes=silent("GP1").modes | silent("GP3").modes))) is None


def test_a_project_may_want_it_always() -> None:
    made = written(review(clean()), always=True)
    assert made is not None
    assert made.is_clean
    assert "No new findings" in made.body


def test_it_says_what_is_new_with_what_was_shown_and_how_to_answer() -> None:
    said = body(review(fixed=[found().findings[0]]))
    assert said.startswith(
        f"<!-- gradproof:summary {PROJECT}:7 -->\n### Gradproof: 2 new findings, 1 shown by execution\n"
    )
    assert "| error | [**GP303** backward" in said
    assert "**Shown by execution:**" in said
    assert "Fixed by this change: GP102 hand" in said
    assert "As of [`aaaaaaaaaaaa`](https://github.com/acme/models/commit/" + "a" * 40 + ")" in said
    assert "compared with [`bbbbbbbbbbbb`]" in said
    assert "`/gradproof ignore aaaaaaaaaaaa REASON`" in said
    assert "[The whole report](https://gradproof.example/analyses/01jc)" in said
    # What passed is no news.
    assert "✓" not in said


def test_without_a_base_that_is_said() -> None:
    assert "compared with nothing: everything counts as new" in body(review(base_sha=None))


def test_when_everything_is_fixed_it_is_short() -> None:
    made = written(review(clean(), fixed=found().findings), said_before=True)
    assert made is not None
    assert made.is_clean
    assert len(made.body) < 700
    assert "Nothing new to look at" in made.body
    assert "Fixed by this change" in made.body
    assert "gate" not in made.body


@pytest.mark.parametrize("status", ["failed", "cancelled", "running", "queued"])
def test_an_analysis_that_came_to_nothing_takes_nothing_back(status: Any) -> None:
    assert written(review(clean(status=status)), said_before=True, always=True) is None


def test_a_partial_analysis_does_not_say_that_all_is_well() -> None:
    said = body(review(clean(status="partial", reason="a worker was lost")), said_before=True)
    assert "Nothing new in what was run. The analysis is partial: a worker was lost." in said


def test_a_push_that_changes_nothing_about_the_findings_is_equal() -> None:
    one = written(review())
    later = written(review(links=replace(GITHUB, head_sha="c" * 40, report=GITHUB.report + "2"), base_sha="d" * 40))
    assert one is not None
    assert later is not None
    assert one.body != later.body
    assert one.digest == later.digest
    for other in (
        review(changed(found(), message="other")),
        review(changed(found(), start_line=17, end_line=17)),
        review(fixed=found().findings),
        review(blocks=True),
        review(clean()),
    ):
        made = written(other, said_before=True)
        assert made is not None
        assert made.digest != one.digest


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("already_failing", "1 already failing on the base"),
        ("flaky", "1 flaky"),
        ("not_comparable", "1 not comparable"),
    ],
)
def test_checks_that_say_nothing_about_the_change_are_folded_away(kind: Any, words: str) -> None:
    theirs = failing().model_copy(update={"baseline_class": kind, "baseline_reason": "because of the base"})
    alone = report_of((), (target(checks=(theirs,)),))
    assert written(review(alone)) is None
    beside = found().model_copy(update={"targets": [*found().targets, *alone.targets]})
    beside = beside.model_copy(
        update={"targets": [each.model_copy(update={"name": f"pkg.a:T{n}"}) if n else each
                            for n, each in enumerate(beside.targets)]}
    )  # fmt: skip
    said = body(review(beside))
    assert f"<summary>Failing checks that do not count against this change: {words}</summary>" in said
    assert "because of the base" in said


def test_a_new_failing_check_speaks() -> None:
    ours = failing().model_copy(update={"baseline_class": "new", "baseline_reason": "it passes on the base"})
    said = body(review(report_of((), (target(checks=(ours,)),))))
    assert "1 newly failing check" in said
    assert "it passes on the base" in said


def test_new_notes_are_counted_beside() -> None:
    report = found()
    note = report.findings[0].model_copy(update={"severity": "note", "fingerprint": "0" * 32})
    said = body(review(report.model_copy(update={"findings": [*report.findings, note]})))
    assert "1 new note in [the report]" in said


def test_it_fits_whatever_there_is() -> None:
    wide = changed(many(300), message="😀`é|@#" * 90, name="ü" * 100)
    said = body(review(wide, fixed=many(300).findings))
    assert size(said) <= 65_536
    assert said.count("\n| warning |") == 50
    assert "250 more of 300 in [the report]" in said
    assert "/gradproof ignore" in said
    assert "and 290 more" in said


def test_a_row_that_does_not_fit_is_left_out_whole() -> None:
    wide = changed(many(50), message="`" * 3 + "<>" * 150, verdict="confirmed", verdict_reason="<" * 900)
    said = body(review(wide))
    assert size(said) <= 65_536
    rows = [line for line in said.split("\n") if line.startswith("| warning")]
    assert all(row.endswith(" |") for row in rows)


def test_it_is_known_by_its_first_line() -> None:
    said = body(review())
    assert is_summary(said, PROJECT, 7)
    assert not is_summary(said, PROJECT, 8)
    assert not is_summary(said, "another", 7)
    assert not is_summary(f"> {said}", PROJECT, 7)
    assert not is_summary("", PROJECT, 7)


@pytest.mark.parametrize("links", [GITHUB, GITLAB])
def test_a_hostile_repository_forges_nothing(links: Any) -> None:
    report = changed(hostile_report(), is_new=True, verdict="confirmed", severity="error")
    said = body(review(report, links=links, fixed=report.findings))
    read = outside_code(said.partition("\n")[2])
    for forbidden in ("@everyone", "fixes #2", "<script", "<img", "<!--", "javascript:", "\u202e", "\x1b"):
        assert forbidden not in read
    assert said.count("<!-- gradproof:") == 1
