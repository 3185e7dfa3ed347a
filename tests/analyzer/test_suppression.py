"""Suppression comments silence what they name, with a reason, where they stand; the rest is reported."""

import pytest

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import StaticAnalysis


def source(*body: str) -> str:
    return "import torch\ndef f(x, y):\n" + "".join(f"    {line}\n" for line in body)


def found(analysis: StaticAnalysis) -> list[tuple[str, int]]:
    return [(finding.rule, finding.region.start_line) for finding in analysis.findings]


def test_a_comment_with_a_reason_silences_its_line() -> None:
    analysis = analyze_source(source("return x / x.norm()  # gradproof: ignore[GP102] rows are never zero"))
    assert found(analysis) == []
    assert [(s.finding.rule, s.reason) for s in analysis.suppressed] == [("GP102", "rows are never zero")]


def test_a_comment_on_the_first_line_of_a_statement_silences_all_of_it() -> None:
    analysis = analyze_source(
        source("return foo(  # gradproof: ignore[GP102] rows are never zero", "  x / x.norm(),", ")")
    )
    assert found(analysis) == []
    assert len(analysis.suppressed) == 1


def test_a_comment_on_a_line_of_the_flagged_expression_silences_it() -> None:
    analysis = analyze_source(source("return (x", "  / x.norm()  # gradproof: ignore[GP102] never zero", ")"))
    assert found(analysis) == []


def test_one_comment_may_name_several_rules() -> None:
    analysis = analyze_source(source("return y / x.norm() + x / x.norm()  # gradproof: ignore[GP101, gp102] both fine"))
    assert found(analysis) == []
    assert {s.finding.rule for s in analysis.suppressed} == {"GP101", "GP102"}


def test_a_comment_without_a_reason_silences_nothing_and_is_reported() -> None:
    analysis = analyze_source(source("return x / x.norm()  # gradproof: ignore[GP102]"))
    assert found(analysis) == [("GP102", 3), ("GP004", 3)]
    assert analysis.suppressed == ()


def test_a_comment_that_silences_nothing_is_reported() -> None:
    analysis = analyze_source(source("return x  # gradproof: ignore[GP102] rows are never zero"))
    assert found(analysis) == [("GP003", 3)]


def test_a_comment_for_another_rule_silences_nothing() -> None:
    analysis = analyze_source(source("return x / x.norm()  # gradproof: ignore[GP103] wrong rule"))
    assert found(analysis) == [("GP102", 3), ("GP003", 3)]


def test_a_comment_on_another_line_silences_nothing() -> None:
    analysis = analyze_source(source("# gradproof: ignore[GP102] too far", "z = 1", "return x / x.norm()"))
    assert found(analysis) == [("GP003", 3), ("GP102", 5)]


def test_a_comment_for_a_rule_that_does_not_run_is_not_called_unused() -> None:
    options = AnalyzerOptions(rules=frozenset({"GP101", "GP003"}))
    assert (
        found(analyze_source(source("return x / x.norm()  # gradproof: ignore[GP102] why not"), options=options)) == []
    )


def test_text_in_a_string_is_no_comment() -> None:
    analysis = analyze_source(source("return '# gradproof: ignore[GP102] text', x / x.norm()"))
    assert found(analysis) == [("GP102", 3)]


@pytest.mark.parametrize("comment", ["# noqa  # gradproof: ignore[GP102] padded", "#gradproof:ignore[GP102]: padded"])
def test_the_comment_is_read_as_people_write_it(comment: str) -> None:
    analysis = analyze_source(source(f"return x / x.norm()  {comment}"))
    assert found(analysis) == []
    assert [s.reason for s in analysis.suppressed] == ["padded"]
