"""Assembles the report document from plain values.

The service calls it with what its rows hold, the command line with what a run without a server brought; neither the
database nor the clock is known here. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from analyzer import eligibility
from analyzer.findings import FixSafety, ImportNote, Suppression
from services.findings.model import SettledFinding, TargetResult
from services.findings.searches import NOT_TRIED
from services.reports.document import (
    AnalysisInfo,
    BaselineInfo,
    EditInfo,
    ExampleInfo,
    FindingInfo,
    FixInfo,
    Gate,
    ImportNoteInfo,
    PlanInfo,
    RelatedInfo,
    Report,
    SnapshotInfo,
    Summary,
    SuppressionInfo,
    TargetCounts,
    TargetInfo,
    Tool,
)
from services.reports.missing import missing_packages

# What the source rules out, and what importing or running it shows to be nothing that could be differentiated.
NOT_ELIGIBLE = frozenset({*eligibility.REASONS, "no differentiable output", "not a target after all"})
# Where a rule is explained when no server is at hand: the page generated from the same docstring.
_DOCUMENTATION = "docs/rules"


def explanation_url(rule: str, public_url: str | None) -> str:
    """Where a rule is explained: the served page, or its page in the documentation without a server."""
    return f"{public_url.rstrip('/')}/rules/{rule}" if public_url else f"{_DOCUMENTATION}/{rule}.md"


def build_report(
    *,
    tool: Tool,
    analysis: AnalysisInfo,
    snapshot: SnapshotInfo,
    gate: Gate,
    findings: Iterable[SettledFinding],
    suppressed: Iterable[Suppression] = (),
    targets: Sequence[TargetResult] = (),
    baseline: BaselineInfo | None = None,
    examples: Iterable[ExampleInfo] = (),
    imports: Iterable[ImportNote] = (),
    plan: PlanInfo | None = None,
    public_url: str | None = None,
) -> Report:
    """The whole report. `public_url` is that of the server, or None for a run without one."""
    finding_infos = [finding_info(settled, public_url) for settled in findings]
    suppressions = [_suppression(suppression) for suppression in suppressed]
    target_infos = [target_info(target) for target in targets]
    return Report(
        tool=tool,
        analysis=analysis,
        snapshot=snapshot,
        gate=gate,
        findings=finding_infos,
        suppressions=suppressions,
        targets=target_infos,
        baseline=baseline,
        examples=list(examples),
        imports=[ImportNoteInfo.model_validate(asdict(note)) for note in imports],
        missing=missing_packages(target_infos),
        plan=plan,
        summary=summarise(finding_infos, target_infos, suppressed=len(suppressions)),
    )


def summarise(findings: Iterable[FindingInfo], targets: Sequence[TargetInfo], *, suppressed: int) -> Summary:
    """The counts. A target was run if at least one check of it was started.

    What can have no gradient, by its source or as the probe found out, is counted apart and not held against the rate.
    """
    apart = Counter(target.not_run_reason for target in targets if target.not_run_reason in NOT_ELIGIBLE)
    counted = [target for target in targets if target.not_run_reason not in NOT_ELIGIBLE]
    ran = [target for target in counted if target.not_run_reason is None and target.checks]
    return Summary(
        findings=dict(Counter(finding.severity for finding in findings)),
        checks=dict(Counter(check.verdict for target in targets for check in target.checks)),
        targets=TargetCounts(
            found=len(counted),
            run=len(ran),
            not_run=dict(
                Counter(
                    target.not_run_reason or "not asked for"
                    for target in counted
                    if target.not_run_reason is not None or not target.checks
                )
            ),
            not_eligible={str(reason): number for reason, number in apart.items()},
        ),
        suppressed=suppressed,
    )


def finding_info(settled: SettledFinding, public_url: str | None) -> FindingInfo:
    """A finding as reports know it."""
    finding = settled.finding
    return FindingInfo(
        fingerprint=finding.fingerprint,
        rule=finding.rule,
        name=finding.name,
        severity=settled.severity.value,
        confidence=finding.confidence.value,
        path=finding.region.path,
        start_line=finding.region.start_line,
        start_column=finding.region.start_column,
        end_line=finding.region.end_line,
        end_column=finding.region.end_column,
        cell=finding.region.cell or None,
        symbol=finding.symbol,
        message=finding.message,
        explanation_url=explanation_url(finding.rule, public_url),
        verdict=settled.settlement.verdict,
        verdict_reason=settled.settlement.reason,
        evidence=dict(settled.settlement.evidence),
        fix=_fix(settled),
        related=[
            RelatedInfo(
                path=related.region.path,
                start_line=related.region.start_line,
                start_column=related.region.start_column,
                end_line=related.region.end_line,
                end_column=related.region.end_column,
                cell=related.region.cell or None,
                message=related.message,
            )
            for related in finding.related
        ],
        is_new=settled.is_new,
        triage=settled.triage,
    )


def _fix(settled: SettledFinding) -> FixInfo:
    """With what came of running it: a fix that was shown not to mend the fault is not offered as safe."""
    fix = settled.finding.fix
    told = settled.settlement.evidence.get("fix")
    outcome = told if isinstance(told, Mapping) else {}
    reason, verified = outcome.get("reason"), outcome.get("verified")
    tried = isinstance(verified, bool) and isinstance(reason, str) and not reason.startswith(NOT_TRIED)
    refuted = tried and not verified and fix.safety is FixSafety.SAFE
    return FixInfo(
        safety=FixSafety.UNSAFE.value if refuted else fix.safety.value,
        edits=[
            EditInfo(
                start_line=edit.region.start_line,
                start_column=edit.region.start_column,
                end_line=edit.region.end_line,
                end_column=edit.region.end_column,
                replacement=edit.replacement,
            )
            for edit in fix.edits
        ],
        verified=bool(verified) if tried else None,
        verified_reason=reason if isinstance(reason, str) else None,
    )


def _suppression(suppression: Suppression) -> SuppressionInfo:
    finding = suppression.finding
    return SuppressionInfo(
        rule=finding.rule,
        path=finding.region.path,
        start_line=finding.region.start_line,
        cell=finding.region.cell or None,
        fingerprint=finding.fingerprint,
        reason=suppression.reason,
    )


def target_info(target: TargetResult) -> TargetInfo:
    """A target as reports know it."""
    declaration = target.declaration
    reason, detail = target.not_run_reason, target.not_run_detail
    if reason is None and declaration.why_not and target.harness is None and not target.checks:
        reason, detail = declaration.why_not, eligibility.TOLD_FROM_SOURCE
    return TargetInfo(
        name=declaration.name,
        kind=declaration.kind.value,
        path=declaration.path,
        line=declaration.line,
        harness=target.harness,
        not_run_reason=reason,
        not_run_detail=detail,
        checks=list(target.checks),
        duration_s=target.duration_s,
        reused=target.reused,
    )
