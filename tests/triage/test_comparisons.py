"""Two analyses compared by the database say the same as two reports compared in memory, and page by page."""

from __future__ import annotations

import pytest

from services.accounts.access import SYSTEM, Permission, Subject
from services.analyses.comparing import comparand
from services.analyses.comparisons import Asked
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow
from services.checks.pages_repository import verdicts_of
from services.gates.classes import with_classes
from services.reports.compare import Comparison, compare
from services.reports.listing import CursorError
from tests.jobs.support import Bench, check
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


def ran(bench: Bench, *verdicts: tuple[str, ...]) -> str:
    """An analysis in which a check of each target said one thing after the other."""
    options = AnalysisOptions(checks=("gradcheck", "nan_gradient", "hvp"), reuse=False)
    analysis_id = bench.submit_and_read(targets=len(verdicts), options=options)
    left = list(verdicts)
    while claims := bench.claim():
        for claim in claims:
            bench.results.ran(claim, torch="2.13.0+cpu", devices=["cpu"], sandbox="off", import_torch=1)
            for name, verdict in zip(("gradcheck", "nan_gradient", "hvp"), left.pop(0), strict=False):
                bench.results.check(claim, check(name, verdict))  # type: ignore[arg-type]
            bench.results.probed(claim)
    return analysis_id


@pytest.fixture
def two(line: Line) -> tuple[str, str]:
    """Two analyses whose checks differ in each way in which they can."""
    base = ran(
        line.bench, ("pass", "pass", "fail"), ("inconclusive", "error"), ("fail",), ("pass", "skipped"), ("pass",), ()
    )
    head = ran(
        line.bench, ("fail", "pass", "pass"), ("fail", "fail"), ("fail", "fail"), ("pass", "fail"), (), ("pass", "fail")
    )
    return base, head


def test_verdicts_are_compared_as_whole_reports_are(line: Line, two: tuple[str, str]) -> None:
    base, head = two
    for first, second in ((base, head), (head, base), (head, head)):
        there, expected = by_database(line, first, second).check_changes, in_memory(line, first, second).check_changes
        assert [change.model_dump(exclude={"baseline_class"}) for change in there] == [
            change.model_dump(exclude={"baseline_class"}) for change in expected
        ]
    with line.bench.database.reading() as session:
        one, other = session.get_one(AnalysisRow, base), session.get_one(AnalysisRow, head)
        told = with_classes(verdicts_of(session, head), comparand(session, other, one), torch="2.13.0+cpu")
    classes = {(target.declaration.name, item.check): item.baseline_class for target in told for item in target.checks}
    changes = by_database(line, base, head).check_changes
    found = {(change.target, change.check): change.baseline_class for change in changes if change.after == "fail"}
    assert found == {key: classes[key] for key in found}
    assert {"new", "flaky", "not_comparable"} <= set(found.values())


def test_changed_verdicts_come_in_pages(line: Line, two: tuple[str, str]) -> None:
    whole = by_database(line, *two)
    assert whole.counts is not None
    assert whole.counts.check_changes == len(whole.check_changes) == 9
    seen, cursor = [], "0"
    while cursor:
        page = by_database(line, *two, Asked("check_changes", cursor, 4))
        assert page.counts == whole.counts
        seen += page.check_changes
        cursor = page.next_cursors.get("check_changes", "")
    assert seen == whole.check_changes
    with pytest.raises(CursorError):
        by_database(line, *two, Asked("check_changes", "x"))


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
