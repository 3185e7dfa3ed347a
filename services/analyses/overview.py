"""An analysis in one line: what lists of analyses, trends and the page of a project show of it. Plain values.

`AnalysisView` says how an analysis goes, which costs several queries each; this says what came of it, from its own row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from services.analyses.totals import Totals


@dataclass(frozen=True, slots=True)
class AnalysisSummary:
    """`gate_passed` and `totals` are None until it has ended; `ref` is what was asked for, `commit` what that was."""

    id: str
    project_id: str | None
    project: str | None
    status: str
    reason: str | None
    purpose: str
    branch: str | None
    source_kind: str
    url: str | None
    ref: str | None
    commit: str | None
    base_id: str | None
    pull_request_id: str | None
    submitted_by_name: str | None
    created_at: datetime
    finished_at: datetime | None
    gate_passed: bool | None
    totals: Totals | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.finished_at is not None
