"""The check says what a pull request brings, page by page, and blocks only where a project wants that."""

from __future__ import annotations

from typing import Any

import pytest

from services.findings.failures import with_failures
from services.forges.check_output import actions, check_output, conclusion, pages_of
from services.forges.markdown import size
from services.forges.review import select
from services.gates import GatePolicy
from services.reports.document import GateCondition, Report
from tests.forges.reviews import GITLAB, changed, clean, found, many, review, silent, without_gate
from tests.reports.samples import hostile_report, report_of, target, wrong_gradient
from tests.reports.test_markdown import outside_code


@pytest.mark.parametrize(
    ("report", "blocks", "expected"),
    [
        (clean(), False, "success"),
        (clean(), True, "success"),
        (found(), False, "neutral"),
        (found(), True, "failure"),
        (without_gate(found(), passed=True), True, "neutral"),
        (without_gate(clean(), passed=False), False, "neutral"),
        (without_gate(clean(), passed=False), True, "failure"),
        (clean(status="cancelled"), True, "cancelled"),
        (clean(status="failed", reason="the disk is full"), True, "neutral"),
        (changed(found(), severity="note"), False, "neutral"),
        (without_gate(changed(found(), severity="note"), passed=True), False, "success"),
    ],
)
def test_what_it_comes_to(report: Report, blocks: bool, expected: str) -> None:
    assert conclusion(review(report, blocks=blocks)) == expected


def cut_short(report: Report, *failed: str) -> Report:
    """The same where not everything could be run, and these conditions of the gate failed."""
    names = ("no check fails", "no new error", "no new warning", "analysis complete")
    conditions = [GateCondition(name=name, passed=name not in failed, explanation="because") for name in names]
    gate = report.gate.model_copy(update={"passed": not failed, "conditions": conditions})
    analysis = report.analysis.model_copy(update={"status": "partial", "reason": "2 of 9 runs could not be made"})
    return report.model_copy(update={"gate": gate, "analysis": analysis})


def test_what_we_could_not_run_ourselves_fails_no_check() -> None:
    ours = review(cut_short(clean(), "analysis complete"), blocks=True)
    assert conclusion(ours) == "neutral"
    assert "What Gradproof could not do blocks nothing".lower() in check_output(ours).summary.lower()
    theirs = review(cut_short(found(), "no new error", "analysis complete"), blocks=True)
    assert conclusion(theirs) == "failure"
    assert "only advises" not in check_output(theirs).summary


def test_without_results_of_the_base_the_check_neither_fails_nor_annotates() -> None:
    unknown = review(blocks=True, base_sha=None, base_is_missing=True)
    assert conclusion(unknown) == "neutral"
    assert conclusion(review(clean(), blocks=True, base_sha=None, base_is_missing=True)) == "neutral"
    output = check_output(unknown)
    assert output.annotations == ()
    assert output.title == "What is new is not known: the base could not be analysed"
    assert "new finding" not in output.summary.lower()
    assert "everything counts as new" not in output.summary
    assert "branched off from could not be analysed" in output.summary


def test_a_check_says_what_is_new_where_it_is_and_what_was_shown() -> None:
    output = check_output(review())
    assert output.title == "2 new findings, 1 shown by execution"
    assert "[`pkg/a.py:13`](https://github.com/acme/models/blob/" + "a" * 40 + "/pkg/a.py#L13)" in output.summary
    assert "**Shown by execution:** gradcheck on pkg" in output.summary
    assert "The gate failed" in output.summary
    assert "only advises" in output.summary
    assert "only advises" not in check_output(review(blocks=True)).summary
    assert "https://gradproof.example/analyses/01jc)" in output.summary
    # The gravest comes first.
    assert output.summary.index("GP303") < output.summary.index("GP102")
    assert [annotation.level for annotation in output.annotations] == ["failure", "warning"]


def test_an_annotation_carries_its_evidence() -> None:
    first = check_output(review()).annotations[0]
    assert (first.path, first.start_line, first.end_line) == ("pkg/a.py", 13, 13)
    assert (first.start_column, first.end_column) == (16, 29)
    assert first.title == "GP303 backward-arity"
    assert "Shown by execution" in first.message
    assert "called with float64[2, 8]" in first.raw_details
    assert "https://gradproof.example/analyses/01jc/findings/" + "a" * 32 in first.raw_details


def test_columns_are_told_of_a_single_line_only() -> None:
    (first, *_) = check_output(review(changed(found(), start_line=5, end_line=7, end_column=4))).annotations
    assert (first.start_line, first.end_line) == (5, 7)
    assert (first.start_column, first.end_column) == (None, None)
    (first, *_) = check_output(review(changed(found(), start_line=5, end_line=7, end_column=1))).annotations
    assert first.end_line == 6


@pytest.mark.parametrize(
    "changes", [{"is_new": False}, {"triage": "accepted"}, {"triage": "false_positive"}, {"verdict": "not_reproduced"}]
)
def test_what_is_known_decided_or_held_is_not_told(changes: dict[str, Any]) -> None:
    output = check_output(review(changed(found(), **changes)))
    assert output.annotations == ()
    assert output.title == "No new findings"


def test_a_rule_that_is_only_monitored_is_silent() -> None:
    output = check_output(review(policy=silent("GP102")))
    assert [annotation.title for annotation in output.annotations] == ["GP303 backward-arity"]
    assert "GP102" not in output.summary.split("### New findings")[1]


def test_annotations_come_in_pages_that_are_the_same_each_time() -> None:
    output = check_output(review(many(120)))
    pages = pages_of(output.annotations, 50)
    assert [len(page) for page in pages] == [50, 50, 20]
    lines = [annotation.start_line for page in pages for annotation in page]
    assert sorted(lines) == list(range(1, 121))
    assert output == check_output(review(many(120)))
    assert pages_of(check_output(review(clean())).annotations, 50) == [()]
    assert pages_of(output.annotations, 0) == [()]
    assert check_output(review(many(120)), annotate=False).annotations == ()


def test_there_is_an_end_to_annotations_and_rows() -> None:
    output = check_output(review(many(1_200, message="x" * 250)))
    assert len(output.annotations) == 500
    summary = output.summary
    assert size(summary) <= 65_535
    rows = summary.count("| warning |")
    assert 100 <= rows <= 200
    assert f"{1_200 - rows:,} more of 1,200 in [the report]" in summary


def test_a_summary_that_is_too_long_loses_whole_rows() -> None:
    wide = changed(many(200), message="😀`é|" * 80, name="ü" * 100)
    summary = check_output(review(wide)).summary
    assert size(summary) <= 65_535
    body = summary.split("### New findings\n\n")[1].split("\n\n")[0].split("\n")
    assert all(row.count(" | ") == 3 and row.endswith(" |") for row in body[2:])
    assert "more of 200 in [the report]" in summary
    assert "The whole report" in summary


@pytest.mark.parametrize(
    ("kind", "told"),
    [("new", True), (None, True), ("already_failing", False), ("flaky", False), ("not_comparable", False)],
)
def test_a_failing_check_counts_when_it_is_the_changes_own(kind: Any, told: bool) -> None:
    failing = wrong_gradient().model_copy(
        update={"baseline_class": kind, "baseline_reason": "it fails on the base too" if kind else None}
    )
    report = report_of((), (target(checks=(failing,)),))
    output = check_output(review(report))
    assert bool(output.annotations) is told
    assert bool(select(review(report)).count) is told
    assert "grad_output_layout" in output.summary or "misreads strides" in output.summary
    if kind == "already_failing":
        assert "1 already failing on the base" in output.summary
        assert "it fails on the base too" in output.summary
    if told:
        (annotation,) = output.annotations
        assert annotation.level == "failure"
        assert "autograd returns 1, the reference is 2" in annotation.raw_details


@pytest.mark.parametrize("kind", ["new", "flaky"])
def test_a_finding_of_a_check_alone_follows_its_class(kind: Any) -> None:
    """The settled report has a finding for the failing check: it speaks only if the check is new."""
    failing = wrong_gradient().model_copy(update={"baseline_class": kind, "baseline_reason": "because"})
    targets = (target(checks=(failing,)),)
    report = report_of((), targets, settled=with_failures((), targets))
    assert len(report.findings) == 1
    selection = select(review(report))
    assert len(selection.findings) == (kind == "new")
    assert [each.kind for each in selection.checks] == ([] if kind == "new" else ["flaky"])


def test_the_numbers_stand_in_the_row_of_what_was_shown() -> None:
    targets = (target(checks=(wrong_gradient(),)),)
    report = report_of((), targets, settled=with_failures((), targets))
    assert "autograd returns 1, the reference is 2" in check_output(review(report)).summary.replace("\\", "")


def test_buttons_are_few_and_short() -> None:
    for report in (found(), clean()):
        offered = actions(review(report))
        assert len(offered) <= 3
        for action in offered:
            assert len(action.label) <= 20
            assert len(action.description) <= 40
            assert len(action.identifier) <= 20
    assert [action.identifier for action in actions(review(found()))] == ["rerun", "explain"]
    assert [action.identifier for action in actions(review(clean()))] == ["rerun"]


def test_why_an_analysis_came_to_nothing_is_said() -> None:
    output = check_output(review(clean(status="failed", reason="the disk is full")))
    assert output.title == "The analysis could not be finished"
    assert "the disk is full" in output.summary
    output = check_output(review(clean(status="partial", reason="a worker was lost")))
    assert output.title == "No new findings (not everything could be run)"
    assert "a worker was lost" in output.summary


def test_gitlab_has_addresses_of_its_own() -> None:
    summary = check_output(review(links=GITLAB)).summary
    assert "https://gitlab.com/acme/models/-/blob/" in summary
    assert "https://gitlab.com/acme/models/-/commit/" in summary


@pytest.mark.parametrize("links", [None, GITLAB])
def test_a_hostile_repository_says_nothing_to_the_forge(links: Any) -> None:
    report = changed(hostile_report(), is_new=True, verdict="confirmed", severity="error")
    output = check_output(review(report, policy=GatePolicy(), **({"links": links} if links else {})))
    read = outside_code(output.summary)
    for forbidden in ("@everyone", "fixes #2", "<script", "<img", "<!--", "javascript:", "\u202e", "\x1b"):
        assert forbidden not in read
    assert "\u202e" not in output.title
    for annotation in output.annotations:
        assert "\u202e" not in annotation.message + annotation.title + annotation.raw_details
        assert "\x1b" not in annotation.message + annotation.title + annotation.raw_details
        assert "\n" not in annotation.title
