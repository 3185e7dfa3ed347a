"""Evidence of a gradient check is told in every format, in the same words, where it has the shape it should have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reports.document import Report
from services.reports.formats import Rendering, report_format
from services.reports.gradient_evidence import gradient_evidence, lines_in_words, unexecuted_lines
from tests.reports.samples import report_of, target, wrong_gradient


def wrong_report() -> Report:
    return report_of((), (target(checks=(wrong_gradient(),)),))


def test_the_facts_come_in_the_order_in_which_a_person_asks_for_them() -> None:
    assert gradient_evidence(wrong_gradient().evidence).facts() == (
        ("situation", "for a transposed incoming gradient"),
        ("worst", "x[0, 1]: autograd returns 1, the reference is 2 ± 1.5e-09"),
        ("look at", "line 13: `grad * x` lacks the factor 2"),
        ("never run", "lines 9-10, 12"),
    )


def test_the_birth_of_a_nan_and_the_input_that_made_it_are_told() -> None:
    evidence = {
        "input": {"argument": "x", "kind": "a row of zeros"},
        "birth": {"path": "pkg/a.py", "line": 18, "operation": "div", "phase": "backward", "value": "nan"},
    }
    assert gradient_evidence(evidence).facts() == (
        ("input", "argument x, kind a row of zeros"),
        ("born", "nan in the backward of div, pkg/a.py:18"),
    )
    forward = {"path": None, "line": None, "operation": "sqrt", "phase": "forward", "details": ["left", "out"]}
    assert gradient_evidence({"birth": forward}).facts() == (("born", "sqrt"),)
    assert gradient_evidence({"birth": {"node": "DivBackward0", "line": 4}}).facts() == (
        ("born", "node DivBackward0, line 4"),
    )
    assert gradient_evidence({"input": "x = zeros(2, 3)"}).facts() == (("input", "x = zeros(2, 3)"),)


def test_the_older_words_for_the_reference_are_understood() -> None:
    worst = {"variable": "w", "index": [], "analytic": "nan", "numeric": 2, "error_estimate": 0.001}
    (fact,) = gradient_evidence({"worst": worst}).facts()
    assert fact == ("worst", "w: autograd returns nan, the reference is 2 ± 0.001")


@pytest.mark.parametrize(
    "evidence",
    [
        {"situation": 3, "look_at": ["x"], "by_design": {}, "input": [1], "birth": None},
        {"worst": [0, 1], "analytic": 1.0, "numeric": 2.0},
        {"worst": {"variable": "x", "analytic": True, "reference": 1.0}},
        {"worst": {"variable": "x", "analytic": "zero", "reference": 1.0}},
        {"unexecuted_lines": "all"},
        {"unexecuted_lines": [0, -1, True, "3", 10**9]},
        {"situation": "", "input": {}, "birth": {"nested": {}}},
    ],
)
def test_what_has_another_shape_is_not_told_and_nothing_breaks(evidence: dict[str, Any]) -> None:
    told = gradient_evidence(evidence)
    assert told.facts() == ()
    assert told.shown_keys() == frozenset()


def test_a_text_is_one_line_and_not_endless() -> None:
    ((_, text),) = gradient_evidence({"situation": "for\na \u202e" + "x" * 9_000}).facts()
    assert text.startswith("for a [U+202E]xxx")
    assert len(text) == 600


@given(st.dictionaries(st.sampled_from(("situation", "worst", "input", "birth", "jacobians", "unexecuted_lines")),
                       st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))))  # fmt: skip
def test_no_evidence_can_break_or_flood_a_report(evidence: dict[str, Any]) -> None:
    for label, text in gradient_evidence(evidence).facts():
        assert "\n" not in text, label
        assert len(text) <= 700


def test_lines_are_ordered_drawn_together_and_never_too_many() -> None:
    assert lines_in_words(unexecuted_lines({"unexecuted_lines": [20, 12, 13, 14, 12]}) or ()) == "lines 12-14, 20"
    assert lines_in_words((7,)) == "line 7"
    assert len(lines_in_words(unexecuted_lines({"unexecuted_lines": list(range(1, 9000, 2))}) or ())) < 700
    assert unexecuted_lines({}) is None
    assert unexecuted_lines({"unexecuted_lines": []}) == ()


@pytest.mark.parametrize("name", ["text", "markdown", "html", "junit", "sarif", "github"])
def test_every_format_for_a_person_tells_the_situation_and_the_worst_coordinate(name: str) -> None:
    written = report_format(name).render(wrong_report(), Rendering(width=300)).replace("\\", "")
    for fact in ("for a transposed incoming gradient", "x[0, 1]: autograd returns 1, the reference is 2", "9-10, 12"):
        assert fact in written


def test_the_page_draws_the_jacobians_and_keeps_the_rest_of_the_evidence() -> None:
    page = report_format("html").render(wrong_report(), Rendering())
    assert page.count("<svg") == 1
    assert "<title>row 0, column 0: -1</title>" in page
    assert "<title>row 1, column 1: nan</title>" in page
    assert "<dt>probes</dt><dd>3</dd>" in page
    assert "<dt>unexecuted lines</dt>" not in page


def test_a_page_with_many_failures_stops_drawing_before_it_is_too_large() -> None:
    full = [[1.0] * 32] * 32
    large = wrong_gradient(evidence={"jacobians": {"analytic": full, "reference": full}})
    many = tuple(target(f"pkg.a:F{number}", checks=(large,)) for number in range(50))
    page = report_format("html").render(report_of((), many), Rendering())
    assert page.count("<svg") == 4
    assert len(page) < 2_000_000
