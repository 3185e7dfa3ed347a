"""GitLab Code Quality: a JSON array that a merge request shows beside the changed lines.

GitLab drops an entry whose fingerprint repeats another's and refuses a byte order mark.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

from analyzer.findings import Region
from services.reports.document import FindingInfo, Report
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.sources import file_region, shown_region
from services.reports.stories import rule_findings, untold_failures
from services.reports.untrusted import one_line


class CodeQualityFormat(ReportFormat):
    """Findings and failing checks as Code Quality issues."""

    name = "codequality"
    title = "GitLab Code Quality"
    media_type = "application/json"
    extension = "codequality.json"

    def render(self, report: Report, rendering: Rendering) -> str:
        seen: Counter[str] = Counter()
        issues = [
            {
                "description": one_line(f"{finding.message} ({finding.verdict.replace('_', ' ')})"),
                "check_name": f"{finding.rule} {finding.name}",
                "fingerprint": _unique(finding.fingerprint, seen),
                "severity": _severity(finding),
                "location": {
                    "path": finding.path,
                    "lines": _lines(file_region(rendering.sources, shown_region(rendering.sources, finding))),
                },
            }
            for finding in rule_findings(report)
            if finding.triage not in {"accepted", "false_positive"}
        ]
        for target, check in untold_failures(report):
            said = check.diagnosis.text if check.diagnosis else check.summary
            path, line = (check.path, check.line) if check.path else (target.path, target.line)
            issues.append(
                {
                    "description": one_line(f"{check.check} fails on {target.name} ({check.device}): {said}"),
                    "check_name": check.check,
                    "fingerprint": _unique("\x00".join((check.check, target.name, check.device)), seen),
                    "severity": "critical",
                    "location": {"path": path, "lines": {"begin": line or 1}},
                }
            )
        return json.dumps(issues, indent=2, ensure_ascii=False) + "\n"


def _lines(region: Region) -> dict[str, int]:
    return {"begin": region.start_line, "end": max(region.start_line, region.end_line)}


def _unique(key: str, seen: Counter[str]) -> str:
    """A digest of the key, and of its occurrence where the key repeats."""
    seen[key] += 1
    occurrence = "" if seen[key] == 1 else f"\x00{seen[key]}"
    return hashlib.sha256((key + occurrence).encode("utf-8", "surrogatepass")).hexdigest()


def _severity(finding: FindingInfo) -> str:
    if finding.verdict == "confirmed":
        return "blocker" if finding.severity == "error" else "critical"
    if finding.verdict == "not_reproduced" or finding.severity == "note":
        return "info"
    return "critical" if finding.severity == "error" else "major"
