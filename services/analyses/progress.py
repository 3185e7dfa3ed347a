"""How far analyses are, stage by stage, for a whole page of them in a few queries.

Jobs are counted where they lie: an analysis may have as many as it has targets. This module must not know what a job
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from services.analyses import repository
from services.analyses.model import Stage
from services.analyses.models import OPEN_STATUSES, AnalysisRow
from services.checks.repository import count_results
from services.jobs.models import OPEN_STATES, JobKind


@dataclass(slots=True)
class _Counts:
    """Of one analysis: probe jobs, those of them that are open by device class, and examples that have (not) ended."""

    probes: int = 0
    still_open: Counter[str] = field(default_factory=Counter)
    examples: list[bool] = field(default_factory=list)


def progress_of(session: Session, rows: Sequence[AnalysisRow]) -> Mapping[str, tuple[Stage, ...]]:
    """The stages of these analyses, by their ids."""
    ids = [row.id for row in rows]
    counts = {analysis_id: _Counts() for analysis_id in ids}
    for analysis_id, kind, device_class, state, number in repository.jobs_by_state(session, ids):
        of_analysis, is_open = counts[analysis_id], state in OPEN_STATES
        if kind == JobKind.EXAMPLES:
            of_analysis.examples += [not is_open] * number
        else:
            of_analysis.probes += number
            of_analysis.still_open[device_class] += number * is_open
    results = count_results(session, ids)
    return {row.id: _stages(session, row, counts[row.id], *results.get(row.id, (0, 0))) for row in rows}


def _stages(session: Session, row: AnalysisRow, counts: _Counts, results: int, of_open_jobs: int) -> tuple[Stage, ...]:
    still_open = counts.still_open.total()
    # A target that is still to be run may bring as many results as it has checks, or none (no harness).
    expected = sum(
        number * repository.checks_of_class(session, row.id, device_class)
        for device_class, number in counts.still_open.items()
        if number and row.status in OPEN_STATUSES
    )
    return (
        Stage("snapshot", int(row.snapshot_digest is not None), 1),
        Stage("static", int(row.static_finished_at is not None), 1),
        # Only where the repository has examples of its own.
        *(Stage("examples", int(ended), 1) for ended in counts.examples),
        Stage("targets", counts.probes - still_open, counts.probes),
        Stage("checks", results, results - of_open_jobs + expected),
    )
