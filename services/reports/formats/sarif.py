"""SARIF 2.1.0, within the limits of GitHub code scanning.

Two runs with categories of their own, because GitHub overwrites an upload of the same tool, category and commit: what
reading found (`gradproof/static`) and what running showed (`gradproof/runtime`). GitHub identifies an alert by
`primaryLocationLineHash` alone, so that is our fingerprint, which holds no line, no message and no rule version:
otherwise dismissed alerts would come back with every upgrade. Limits: 25,000 results a run (the first 5,000 are
shown, so the gravest come first), 10 MB compressed, 1,000 locations a result of which 100 are kept, 1,024 characters in
a description, no empty strings. Whatever is left out for them is announced in the run's notifications.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from analyzer.findings import Region
from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, Harness, RelatedInfo, Report, TargetInfo
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.gradient_evidence import gradient_evidence
from services.reports.rulebook import Entry, entry
from services.reports.sources import Sources, file_region, line_region, region_of, shown_region
from services.reports.stories import rule_findings, untold_failures
from services.reports.untrusted import shorten, visible

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAXIMUM_RESULTS = 25_000
MAXIMUM_BYTES = 10_000_000
SHOWN_RESULTS = 5_000
MAXIMUM_LOCATIONS = 100
MAXIMUM_TEXT = 1_024

_RANK = {"error": 0, "warning": 1, "note": 2}
_PROBLEM = {"error": "error", "warning": "warning", "note": "recommendation"}
_TRIAGE_STATUS = {"accepted": "accepted", "false_positive": "accepted"}

Json = dict[str, Any]


class SarifFormat(ReportFormat):
    """Findings and failing checks as SARIF results."""

    name = "sarif"
    title = "SARIF 2.1.0"
    media_type = "application/sarif+json"
    extension = "sarif"

    def render(self, report: Report, rendering: Rendering) -> str:
        most = MAXIMUM_RESULTS
        while True:
            runs = [_static(report, rendering.sources, most), _runtime(report, rendering.sources, most)]
            document = {"$schema": SCHEMA, "version": "2.1.0", "runs": runs}
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            if most == 1 or _fits(text):
                return text
            most = max(most // 2, 1)


def _fits(text: str) -> bool:
    """Whether GitHub takes a file of this content: it counts compressed bytes."""
    data = text.encode("utf-8", "replace")
    return len(data) <= MAXIMUM_BYTES or len(gzip.compress(data, 6)) <= MAXIMUM_BYTES


def _static(report: Report, sources: Sources, most: int) -> Json:
    findings = sorted(rule_findings(report), key=lambda finding: (_RANK[finding.severity], not finding.is_new))
    run = _run(report, "static", (finding.rule for finding in findings), len(findings), most)
    seen: Counter[str] = Counter()
    run["results"] = [_finding(finding, run, seen, sources) for finding in findings[:most]]
    for finding, result in zip(findings, run["results"], strict=False):
        result["properties"]["harness"] = _harness(harnesses.harness_of(report, finding))
    addresses = {finding.rule: finding.explanation_url for finding in findings}
    for rule in run["tool"]["driver"]["rules"]:
        if addresses[rule["id"]].startswith(("https://", "http://")):
            rule["helpUri"] = addresses[rule["id"]]
    run["properties"] = {"suppressedInSource": report.summary.suppressed}
    return run


def _runtime(report: Report, sources: Sources, most: int) -> Json:
    failing = untold_failures(report)
    run = _run(report, "runtime", (check.check for _, check in failing), len(failing), most)
    seen: Counter[str] = Counter()
    run["results"] = [_failure(target, check, run, seen, sources) for target, check in failing[:most]]
    run["properties"] = {"checks": report.summary.checks, "targets": report.summary.targets.model_dump()}
    return run


def _run(report: Report, category: str, identifiers: Iterable[str], results: int, most: int) -> Json:
    entries = [entry(identifier) for identifier in dict.fromkeys(identifiers)]
    invocation: Json = {
        "executionSuccessful": report.analysis.status in {"finished", "partial"},
        "startTimeUtc": report.analysis.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    if report.analysis.finished_at is not None:
        invocation["endTimeUtc"] = report.analysis.finished_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    notifications = []
    if results > most:
        notifications.append(f"{results - most} of {results} results are left out: see the whole report.")
    if min(results, most) > SHOWN_RESULTS:
        notifications.append(f"GitHub shows the first {SHOWN_RESULTS} of {min(results, most)} results, the gravest.")
    if report.analysis.reason:
        notifications.append(report.analysis.reason)
    if notifications:
        invocation["toolExecutionNotifications"] = [
            {"level": "warning", "message": {"text": _text(text)}} for text in notifications
        ]
    run: Json = {
        "tool": {
            "driver": {
                "name": report.tool.name,
                "version": report.tool.version,
                "semanticVersion": report.tool.version,
                "rules": [_rule(each) for each in entries],
            }
        },
        "automationDetails": {"id": f"gradproof/{category}/{report.analysis.id}"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the analysed repository."}}},
        "invocations": [invocation],
    }
    source = report.snapshot.source
    if source.kind == "git" and source.url and source.commit:
        run["versionControlProvenance"] = [{"repositoryUri": source.url, "revisionId": source.commit}]
    return run


def _rule(each: Entry) -> Json:
    severity = each.severity or "error"
    return {
        "id": each.id,
        "name": each.name,
        "shortDescription": {"text": _text(each.summary)},
        "fullDescription": {"text": _text(each.explanation)},
        "help": {"text": _text(each.explanation), "markdown": each.page or _text(each.explanation)},
        "defaultConfiguration": {"level": severity},
        "properties": {
            "precision": each.confidence or "very-high",
            "problem.severity": _PROBLEM[severity],
            "tags": ["correctness", "gradient", "pytorch"],
        },
    }


def _finding(finding: FindingInfo, run: Json, seen: Counter[str], sources: Sources) -> Json:
    where = f"Cell {finding.cell}, line {finding.start_line}: " if finding.cell else ""
    result: Json = {
        **_reference(finding.rule, run),
        "level": finding.severity,
        "kind": "fail",
        "message": {"text": _text(f"{where}{finding.message} [{finding.verdict.replace('_', ' ')}]")},
        "locations": [
            {
                "physicalLocation": _place(file_region(sources, shown_region(sources, finding))),
                "logicalLocations": [{"fullyQualifiedName": visible(finding.symbol) or visible(finding.path)}],
            }
        ],
        "partialFingerprints": _fingerprints(finding.fingerprint, seen),
        "baselineState": "new" if finding.is_new else "unchanged",
        "properties": {
            "verdict": finding.verdict,
            "verdictReason": visible(finding.verdict_reason),
            "confidence": finding.confidence,
            "triage": finding.triage,
            "evidence": finding.evidence,
            "explanationUrl": finding.explanation_url,
        },
    }
    if finding.related:
        result["relatedLocations"] = [
            _related(index, related, sources)
            for index, related in enumerate(finding.related[: MAXIMUM_LOCATIONS - 1], start=1)
        ]
    if finding.cell:
        result["properties"]["cell"] = finding.cell
        result["properties"]["place"] = visible(finding.place)
    elif finding.fix.edits:
        result["fixes"] = [_fix(finding)]
    if finding.triage in _TRIAGE_STATUS:
        result["suppressions"] = [
            {"kind": "external", "status": _TRIAGE_STATUS[finding.triage], "justification": finding.triage}
        ]
    return result


def _fix(finding: FindingInfo) -> Json:
    return {
        "description": {"text": f"{finding.fix.safety} fix for {finding.rule}"},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(finding.path),
                "replacements": [
                    {
                        "deletedRegion": _region(
                            Region(finding.path, edit.start_line, edit.start_column, edit.end_line, edit.end_column)
                        ),
                        "insertedContent": {"text": edit.replacement},
                    }
                    for edit in finding.fix.edits
                ],
            }
        ],
    }


def _related(index: int, related: RelatedInfo, sources: Sources) -> Json:
    return {
        "id": index,
        "physicalLocation": _place(file_region(sources, region_of(related))),
        "message": {"text": _text(related.message)},
    }


def _failure(target: TargetInfo, check: CheckInfo, run: Json, seen: Counter[str], sources: Sources) -> Json:
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    said = check.summary
    if check.diagnosis is not None:
        said += f" Cause: {check.diagnosis.cause}."
        if check.diagnosis.text != check.summary:
            said += f" {check.diagnosis.text}"
    said += "".join(f"\n{label}: {fact}" for label, fact in gradient_evidence(check.evidence).facts())
    return {
        **_reference(check.check, run),
        "level": "error",
        "kind": "fail",
        "message": {"text": _text(f"{check.check} fails on {target.name} ({check.device}): {said}")},
        "locations": [
            {
                "physicalLocation": _place(line_region(sources, path, line)),
                "logicalLocations": [{"fullyQualifiedName": visible(target.name)}],
            }
        ],
        "partialFingerprints": _fingerprints(
            hashlib.sha256(
                "\x00".join((check.check, target.name, check.device)).encode("utf-8", "surrogatepass")
            ).hexdigest()[:32],
            seen,
        ),
        "properties": {
            "target": target.name,
            "device": check.device,
            "cause": check.diagnosis.cause if check.diagnosis else None,
            "numbers": check.diagnosis.numbers if check.diagnosis else {},
            "evidence": check.evidence,
            "repro": check.repro,
            "harness": _harness(target.harness),
        },
    }


def _harness(harness: Harness | None) -> Json | None:
    """How sure it is that the author calls it so, and how it was called."""
    if harness is None:
        return None
    return {
        "grade": harness.grade,
        "meaning": harnesses.GRADES[harness.grade],
        "source": harness.source,
        "provenance": visible(harness.provenance),
        "code": visible(harness.code),
    }


def _reference(identifier: str, run: Json) -> Json:
    rules = run["tool"]["driver"]["rules"]
    return {"ruleId": identifier, "ruleIndex": next(i for i, rule in enumerate(rules) if rule["id"] == identifier)}


def _fingerprints(fingerprint: str, seen: Counter[str]) -> Json:
    """GitHub's own key has the form `hash:occurrence`; ours is kept beside it, with the version of its recipe."""
    seen[fingerprint] += 1
    return {"primaryLocationLineHash": f"{fingerprint}:{seen[fingerprint]}", "gradproof/v1": fingerprint}


def _place(region: Region) -> Json:
    return {"artifactLocation": _artifact(region.path), "region": _region(region)}


def _artifact(path: str) -> Json:
    return {"uri": quote(path, errors="surrogatepass"), "uriBaseId": "%SRCROOT%"}


def _region(region: Region) -> Json:
    return {
        "startLine": max(region.start_line, 1),
        "startColumn": max(region.start_column, 1),
        "endLine": max(region.end_line, region.start_line, 1),
        "endColumn": max(region.end_column, 1),
    }


def _text(text: str) -> str:
    return shorten(visible(text).strip() or "(no text)", MAXIMUM_TEXT)
