"""The grid: which word a cell says, in which order rows and columns stand."""

from __future__ import annotations

from services.checks.pages_repository import GridCell, GridRow
from services.reports.grid import columns_of, counts_by_check, grid


def row(position: int, *cells: tuple[str, str, str]) -> GridRow:
    """A target with these (check, device, verdict)."""
    return GridRow(
        position=position,
        name=f"pkg.a:T{position}",
        kind="module",
        path="pkg/a.py",
        line=1,
        not_run_reason=None,
        reused=False,
        cells=tuple(GridCell(*cell) for cell in cells),
    )


def test_columns_stand_in_the_order_of_running_and_unknown_ones_behind() -> None:
    assert columns_of({"zzz", "hvp", "gradcheck", "aaa"}) == ("gradcheck", "hvp", "aaa", "zzz")


def test_what_somebody_has_to_look_at_comes_first_and_the_rest_stays_in_order() -> None:
    rows = [
        row(0, ("gradcheck", "cpu", "pass")),
        row(1, ("gradcheck", "cpu", "skipped")),
        row(2, ("gradcheck", "cpu", "fail")),
        row(3, ("gradcheck", "cpu", "pass"), ("hvp", "cpu", "inconclusive")),
        row(4),
    ]
    told = grid(rows, ["gradcheck", "hvp"], failing_first=True)
    assert [each.target.position for each in told.rows] == [2, 3, 0, 1, 4]
    assert [each.target.position for each in grid(rows, ["gradcheck"]).rows] == [0, 1, 2, 3, 4]


def test_a_cell_of_several_devices_says_the_gravest_verdict_and_names_each() -> None:
    told = grid([row(0, ("device_compare", "cpu", "pass"), ("device_compare", "cuda", "fail"))], ["device_compare"])
    (cell,) = told.rows[0].cells
    assert (cell.verdict, cell.device) == ("fail", "cuda")
    assert cell.told == "pass on cpu, fail on cuda"


def test_a_check_that_did_not_run_leaves_its_cell_empty() -> None:
    cells = grid([row(0, ("hvp", "cpu", "pass"))], ["gradcheck", "hvp"]).rows[0].cells
    assert [(cell.check, cell.verdict, cell.told) for cell in cells] == [("gradcheck", "", ""), ("hvp", "pass", "pass")]


def test_results_are_counted_by_check_the_gravest_first() -> None:
    (counts,) = counts_by_check({"hvp": {"pass": 3, "fail": 1}})
    assert counts.counts[0] == ("fail", 1)
    assert counts.total == 4
