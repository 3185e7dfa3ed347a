"""The grid of targets and checks, prepared: one column a check, one word a cell, whatever the device. Pure.

It gets verdicts only: what they rest on would be hundreds of megabytes for a large analysis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.checks.pages_repository import GridCell, GridRow
from services.checks.plan import CHECKS

# What somebody has to look at goes before what has nothing to say.
_GRAVITY: Final = ("fail", "error", "inconclusive", "pass", "skipped")


@dataclass(frozen=True, slots=True)
class Cell:
    """The gravest verdict of a check on a target; empty where it did not run. `told` names devices if they differ."""

    check: str
    verdict: str
    told: str
    device: str


@dataclass(frozen=True, slots=True)
class Row:
    """A target and its cells, one for each column."""

    target: GridRow
    cells: tuple[Cell, ...]
    gravest: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns are checks in the order of running them."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """How the results of one check divide."""

    check: str
    counts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(number for _, number in self.counts)


def columns_of(checks: Collection[str]) -> tuple[str, ...]:
    """The checks that are there, in the order of running them; unknown ones behind."""
    known = [name for name in CHECKS if name in checks]
    return (*known, *sorted(set(checks) - set(known)))


def grid(rows: Iterable[GridRow], columns: Sequence[str], *, failing_first: bool = False) -> Grid:
    """The rows as they are, or those first that somebody has to look at."""
    prepared = [_row(row, columns) for row in rows]
    if failing_first:
        prepared.sort(key=lambda row: _rank(row.gravest))
    return Grid(tuple(columns), tuple(prepared))


def counts_by_check(verdicts: Mapping[str, Mapping[str, int]]) -> tuple[CheckCounts, ...]:
    """How the results of each check divide, the gravest verdicts first."""
    return tuple(
        CheckCounts(check, tuple((verdict, verdicts[check].get(verdict, 0)) for verdict in _GRAVITY))
        for check in columns_of(verdicts)
    )


def _row(row: GridRow, columns: Sequence[str]) -> Row:
    by_check: dict[str, list[GridCell]] = {}
    for cell in row.cells:
        by_check.setdefault(cell.check, []).append(cell)
    cells = tuple(_cell(check, by_check.get(check, ())) for check in columns)
    return Row(row, cells, min((cell.verdict for cell in row.cells), key=_rank, default=""))


def _cell(check: str, results: Sequence[GridCell]) -> Cell:
    if not results:
        return Cell(check, "", "", "")
    gravest = min(results, key=lambda result: _rank(result.verdict))
    several = len(results) > 1
    told = ", ".join(f"{result.verdict} on {result.device}" for result in results) if several else gravest.verdict
    return Cell(check, gravest.verdict, told, gravest.device)


def _rank(verdict: str) -> int:
    return _GRAVITY.index(verdict) if verdict in _GRAVITY else len(_GRAVITY)
