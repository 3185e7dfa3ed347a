"""What the static findings inside a target suspect, as data for the checks that run it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.findings import Finding, TargetDeclaration


def hypotheses_within(target: TargetDeclaration, findings: Iterable[Finding]) -> tuple[dict[str, object], ...]:
    """One record for each finding that lies within the target and that a check can settle."""
    return tuple(
        {
            "rule": finding.rule,
            "fingerprint": finding.fingerprint,
            "path": finding.region.path,
            "line": finding.region.start_line,
            "symbol": finding.symbol,
            **finding.hypothesis,
        }
        for finding in findings
        if finding.settled_by
        and finding.region.path == target.path
        and target.line <= finding.region.start_line <= target.end_line
    )
