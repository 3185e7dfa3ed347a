"""Two analyses compared by the database say the same as two reports compared in memory, and page by page."""

from __future__ import annotations

import pytest

from services.accounts.access import SYSTEM, Permission, Subject
from services.analyses.comparisons import Asked
from services.analyses.errors import AnalysisNotFoundError
from services.reports.compare import Comparison, compare
from services.reports.listing import CursorError
from tests.jobs.support import check
from tests.triage.line import Line


def in_memory(line: Line, base: str, head: str) -> Comparison:
    return compare(line.bench.analyses.report(base), line.bench.analyses.report(head))


def by_database(line: Line, base: str, head: str, asked: Asked = Asked()) -> Comparison:  # noqa: B008
    return line.results.compare(SYSTEM, base, head, asked)


def without_counts(comparison: Comparison) -> dict[str, object]:
    return comparison.model_dump(exclude={"counts", "next_cursors"})


def test_both_ways_agree(line: Line) -> None:
    first = line.submit()
    line.settle((1, 2, 3), check("gradcheck"), check("nan_gradient"))
    second = line.submit()
    line.settle((2, 3, 4), check("gradcheck", "fail", line=205), check("hvp"))
    third = line.submit()
    line.settle((1, 3), check("gradcheck"))
    for base, head in ((first, second), (second, first), (first, third), (first, first)):
        there = by_database(line, base, head)
        expected = in_memory(line, base, head)
        if base != head:
            for change in expected.check_changes:
                change.baseline_class = "new" if (change.before, change.after) == ("pass", "fail") else None
        assert without_counts(there) == without_counts(expected)
    # What the project had seen fixed before, and what the base lacks.
    assert [item.fingerprint for item in by_database(line, second, third).regressed] == ["fingerprint-1"]


def test_long_lists_come_in_pages(line: Line) -> None:
    base, head = line.analysed(*range(10)), line.analysed(*range(5, 30))
    whole = by_database(line, base, head)
    assert whole.counts is not None
    assert (whole.counts.new, whole.counts.fixed, whole.counts.unchanged) == (20, 5, 5)
    assert whole.next_cursors == {}
    first = by_database(line, base, head, Asked(limit=7))
    assert set(first.next_cursors) == {"new"}
    assert (len(first.new), len(first.fixed), len(first.unchanged)) == (7, 5, 5)
    assert first.counts == whole.counts
    seen, cursor = list(first.new), first.next_cursors["new"]
    while cursor:
        page = by_database(line, base, head, Asked("new", cursor, 7))
        assert page.fixed == []
        seen += page.new
        cursor = page.next_cursors.get("new", "")
    assert seen == whole.new
    with pytest.raises(CursorError):
        by_database(line, base, head, Asked("new", "x"))


def test_both_have_to_be_readable(line: Line) -> None:
    base, head = line.analysed(1), line.analysed(1)
    stranger = Subject("user", "u1", "Eve", frozenset(Permission), user_id="u1")
    with pytest.raises(AnalysisNotFoundError):
        line.results.compare(stranger, base, head)
