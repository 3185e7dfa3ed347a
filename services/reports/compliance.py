"""The compliance record of an analysis: what was checked, with what, and who accepted what. Pure.

A record is a JSON document with a digest over its own content: SHA-256 over the canonical form, which is JSON with
sorted keys, without spaces, in UTF-8, without the digest itself. So anybody can tell, without a server and years later,
whether a record is what Gradproof wrote (`verify`). It shows that nothing was altered by accident; who may alter it and
write a new digest can do so, unless the digest is kept elsewhere. The same state of an analysis gives the same record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pydantic import Field

from services.reports.document import (
    CheckClassName,
    CheckInfo,
    CheckVerdict,
    Document,
    EnvironmentInfo,
    FindingInfo,
    FindingVerdict,
    Gate,
    Json,
    Report,
    SnapshotInfo,
    Summary,
    TargetInfo,
    TriageState,
)

_PREFIX = "sha256:"


class RecordedDecision(Document):
    """Who decided about a finding, and until when that holds."""

    state: TriageState
    reason: str
    by: str | None
    at: datetime | None
    until_date: datetime | None = None
    until_occurrences: int | None = None
    until_torch: str | None = None


class RecordedFinding(Document):
    fingerprint: str
    rule: str
    name: str
    severity: Literal["error", "warning", "note"]
    path: str
    line: int
    verdict: FindingVerdict
    is_new: bool
    triage: TriageState
    decision: RecordedDecision | None = None


class RecordedCheck(Document):
    check: str
    device: str
    verdict: CheckVerdict
    baseline_class: CheckClassName | None = None


class RecordedTarget(Document):
    """A target with the verdicts of its checks; `reused`: found out by an earlier run of the same code."""

    name: str
    kind: str
    path: str
    line: int
    constructor: str | None
    inputs: list[str]
    harness: str | None = Field(description="where the harness comes from, and its grade: `mined, A`")
    not_run_reason: str | None
    reused: bool
    checks: list[RecordedCheck]


class RecordedSuppression(Document):
    rule: str
    path: str
    line: int
    fingerprint: str
    reason: str


class RecordedSubject(Document):
    """What was analysed, for whom, when."""

    analysis: str
    project: str | None
    purpose: str
    branch: str | None
    submitted_by: str | None
    base: str | None
    created_at: datetime
    finished_at: datetime | None
    status: str
    reason: str | None


class RecordedTool(Document):
    """What analysed it: versions, devices, how code was confined, what was installed for it."""

    name: str
    version: str
    torch: str | None
    devices: list[str]
    sandbox: str
    environment: EnvironmentInfo | None


class RecordedTerms(Document):
    """How it was analysed: what was asked for, by which policy, with which tolerances, bounds and seed."""

    options: Json
    policy: Json
    tolerances: dict[str, float]
    bounds: dict[str, float] = Field(description="limits of time and memory, as the operator has set them now")
    seed: int


class ComplianceRecord(Document):
    """One analysis, for the files."""

    schema_version: Literal["1"] = "1"
    kind: Literal["gradproof compliance record"] = "gradproof compliance record"
    subject: RecordedSubject
    source: SnapshotInfo
    tool: RecordedTool
    terms: RecordedTerms
    gate: Gate
    summary: Summary
    findings: list[RecordedFinding]
    targets: list[RecordedTarget]
    suppressions: list[RecordedSuppression]
    digest: str = Field(default="", description="sha256: over the canonical form of everything else")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a record tells beside the report. `decisions` are those in force, by fingerprint."""

    project: str | None = None
    purpose: str = "main"
    branch: str | None = None
    submitted_by: str | None = None
    base: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    decisions: Mapping[str, RecordedDecision] = field(default_factory=dict)


def compliance_record(report: Report, circumstances: Circumstances) -> ComplianceRecord:
    """The record of an analysis, with its digest."""
    analysis, tool, told = report.analysis, report.tool, circumstances
    record = ComplianceRecord(
        subject=RecordedSubject(
            analysis=analysis.id,
            project=told.project,
            purpose=told.purpose,
            branch=told.branch,
            submitted_by=told.submitted_by,
            base=told.base,
            created_at=analysis.created_at,
            finished_at=analysis.finished_at,
            status=analysis.status,
            reason=analysis.reason,
        ),
        source=report.snapshot,
        tool=RecordedTool(
            name=tool.name,
            version=tool.version,
            torch=tool.torch,
            devices=tool.devices,
            sandbox=tool.sandbox,
            environment=tool.environment,
        ),
        terms=RecordedTerms(
            options=dict(told.options),
            policy=dict(told.policy),
            tolerances=dict(told.tolerances),
            bounds=dict(told.bounds),
            seed=told.seed,
        ),
        gate=report.gate,
        summary=report.summary,
        findings=[_finding(finding, told.decisions.get(finding.fingerprint)) for finding in report.findings],
        targets=[_target(target) for target in report.targets],
        suppressions=[
            RecordedSuppression(
                rule=item.rule,
                path=item.path,
                line=item.start_line,
                fingerprint=item.fingerprint,
                reason=item.reason,
            )
            for item in report.suppressions
        ],
    )
    return record.model_copy(update={"digest": digest_of(record.model_dump(mode="json"))})


def digest_of(record: Mapping[str, object]) -> str:
    """The digest of a record as JSON values, whatever digest it holds."""
    content = {key: value for key, value in record.items() if key != "digest"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _PREFIX + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def verify(record: Mapping[str, object]) -> bool:
    """Whether a record, read from JSON, is as it was written."""
    return record.get("digest") == digest_of(record)


def _finding(finding: FindingInfo, decision: RecordedDecision | None) -> RecordedFinding:
    return RecordedFinding(
        fingerprint=finding.fingerprint,
        rule=finding.rule,
        name=finding.name,
        severity=finding.severity,
        path=finding.path,
        line=finding.start_line,
        verdict=finding.verdict,
        is_new=finding.is_new,
        triage=finding.triage,
        decision=decision,
    )


def _target(target: TargetInfo) -> RecordedTarget:
    harness = target.harness
    return RecordedTarget(
        name=target.name,
        kind=target.kind,
        path=target.path,
        line=target.line,
        constructor=None if harness is None else harness.constructor,
        inputs=[] if harness is None else harness.inputs,
        harness=None if harness is None else f"{harness.source}, {harness.grade}",
        not_run_reason=target.not_run_reason,
        reused=target.reused,
        checks=[_check(check) for check in target.checks],
    )


def _check(check: CheckInfo) -> RecordedCheck:
    return RecordedCheck(
        check=check.check, device=check.device, verdict=check.verdict, baseline_class=check.baseline_class
    )
