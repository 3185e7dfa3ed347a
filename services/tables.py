"""Every table of the product, in one import: for migrations and for whoever needs the metadata to be complete.

This module must hold nothing but imports.
"""

from __future__ import annotations

from services.accounts.models import ApiTokenRow
from services.analyses.models import AnalysisRow, IdempotencyKeyRow
from services.checks.models import CheckResultRow, TargetRow
from services.findings.models import FindingRow, SuppressionRow
from services.jobs.models import JobRow, LeaseRow, WorkerRow
from services.projects.models import ProjectRow
from services.snapshots.models import SnapshotRow

__all__ = [
    "AnalysisRow",
    "ApiTokenRow",
    "CheckResultRow",
    "FindingRow",
    "IdempotencyKeyRow",
    "JobRow",
    "LeaseRow",
    "ProjectRow",
    "SnapshotRow",
    "SuppressionRow",
    "TargetRow",
    "WorkerRow",
]
