"""Spans of lines answer as if each were looked at, without looking at each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.findings.spans import Spans

LINES = st.integers(min_value=1, max_value=30)
SPANS = st.lists(st.tuples(LINES, LINES).map(sorted), max_size=20)


@given(SPANS, LINES)
def test_a_line_has_the_values_whose_spans_include_it_in_the_order_of_their_beginnings(
    spans: list[list[int]], line: int
) -> None:
    numbered = [(first, last, number) for number, (first, last) in enumerate(spans)]
    expected = sorted((span for span in numbered if span[0] <= line <= span[1]), key=lambda span: span[0])
    assert Spans(numbered).at(line) == tuple(number for _, _, number in expected)


@given(SPANS, LINES, LINES)
def test_what_begins_between_two_lines_is_found(spans: list[list[int]], first: int, last: int) -> None:
    numbered = [(begin, end, number) for number, (begin, end) in enumerate(spans)]
    assert sorted(Spans(numbered).beginning(first, last)) == [
        number for begin, _, number in numbered if first <= begin <= last
    ]


class CountedLine(int):
    """A line that counts how often it is compared."""

    comparisons = 0

    def __gt__(self, other: int) -> bool:
        CountedLine.comparisons += 1
        return int(self) > int(other)

    def __lt__(self, other: int) -> bool:
        CountedLine.comparisons += 1
        return int(self) < int(other)


def test_one_span_around_many_does_not_make_each_question_look_at_all_of_them() -> None:
    spans = Spans([(1, 100_000, "all"), *((line, line, "one") for line in range(2, 50_000))])
    assert spans.at(CountedLine(49_999)) == ("all", "one")
    assert 10 < CountedLine.comparisons < 200
