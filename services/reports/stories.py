"""One fault, one entry, in formats that list findings and failing checks side by side. Pure.

A failing check that belongs to a rule's finding is told there; a finding that comes from checks alone is told by the
first of them that failed, which has more to show: cause, numbers and a script.
"""

from __future__ import annotations

from services.checks.plan import CHECKS
from services.reports.document import CheckInfo, FindingInfo, Report, TargetInfo


def rule_findings(report: Report) -> list[FindingInfo]:
    """The findings that a rule said, in the order of the report."""
    return [finding for finding in report.findings if finding.rule not in CHECKS]


def untold_failures(report: Report) -> list[tuple[TargetInfo, CheckInfo]]:
    """The failing checks that belong to no rule's finding and tell of no fault that another one has told.

    In the order of the report.
    """
    told = {key for finding in rule_findings(report) for key in _told(finding)}
    own = {key for finding in report.findings for key in _told(finding) if key[1] == finding.rule}
    told |= {key for finding in report.findings for key in _told(finding) if key[1] != finding.rule} - own
    return [
        (target, check)
        for target in report.targets
        for check in target.checks
        if check.verdict == "fail" and (target.name, check.check, check.device) not in told
    ]


def _told(finding: FindingInfo) -> list[tuple[object, ...]]:
    records = finding.evidence.get("checks")
    return [
        (record.get("target"), record.get("check"), record.get("device"))
        for record in (records if isinstance(records, list) else ())
        if isinstance(record, dict)
    ]
