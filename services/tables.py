"""Every table of the product, in one import: for migrations and for whoever needs the metadata to be complete.

This module must hold nothing but imports.
"""

from __future__ import annotations

from services.accounts.models import (
    ApiTokenRow,
    AuditEventRow,
    IdentityRow,
    MembershipRow,
    OrganisationRow,
    ProjectMembershipRow,
    SessionRow,
    SignInAttemptsRow,
    UserRow,
)
from services.analyses.models import AnalysisRow, IdempotencyKeyRow
from services.checks.models import CheckResultRow, TargetRow
from services.digests.models import DigestMailRow, DigestRow
from services.findings.models import FindingRow, SuppressionRow
from services.forges.models import (
    DeliveryRow,
    ForgeTaskRow,
    InstallationRow,
    PullRequestRow,
    RepositoryRow,
    ReviewThreadRow,
)
from services.jobs.models import JobRow, LeaseRow, WorkerRow
from services.projects.models import HookDeliveryRow, HookRow, ProjectRow, ShareLinkRow
from services.snapshots.models import SnapshotRow
from services.triage.models import ProjectFindingRow, TriageEventRow

__all__ = [
    "AnalysisRow",
    "ApiTokenRow",
    "AuditEventRow",
    "CheckResultRow",
    "DeliveryRow",
    "DigestMailRow",
    "DigestRow",
    "FindingRow",
    "ForgeTaskRow",
    "HookDeliveryRow",
    "HookRow",
    "IdempotencyKeyRow",
    "IdentityRow",
    "InstallationRow",
    "JobRow",
    "LeaseRow",
    "MembershipRow",
    "OrganisationRow",
    "ProjectFindingRow",
    "ProjectMembershipRow",
    "ProjectRow",
    "PullRequestRow",
    "RepositoryRow",
    "ReviewThreadRow",
    "SessionRow",
    "ShareLinkRow",
    "SignInAttemptsRow",
    "SnapshotRow",
    "SuppressionRow",
    "TargetRow",
    "TriageEventRow",
    "UserRow",
    "WorkerRow",
]
