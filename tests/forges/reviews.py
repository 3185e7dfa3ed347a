"""Reviews to render, made of the sample reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.findings.failures import with_failures
from services.findings.settle import settle
from services.forges.diff import PullRequestDiff, computed_patch, read_diff
from services.forges.inline_comments import git_blob_sha
from services.forges.review import Links, Review
from services.forges.values import ChangedFile
from services.gates import GatePolicy, RuleMode
from services.reports.document import EditInfo, FindingInfo, FixInfo, Report
from services.reports.sources import TreeSources
from tests.reports.samples import SOURCE, arity, check, failing, finding, norm, report_of, target

HEAD, BASE = "a" * 40, "b" * 40
GITHUB = Links("github", "https://github.com/acme/models", HEAD, "https://gradproof.example/analyses/01jc")
GITLAB = Links("gitlab", "https://gitlab.com/acme/models", HEAD, "https://gradproof.example/analyses/01jc")
TREE = {"pkg/a.py": SOURCE.encode()}
PUBLIC = "https://gradproof.example"


def review(report: Report | None = None, **changes: Any) -> Review:
    """A review of a report, seen with the sample source."""
    values: dict[str, Any] = {
        "report": found() if report is None else report,
        "links": GITHUB,
        "policy": GatePolicy(),
        "base_sha": BASE,
        "sources": TreeSources(TREE),
    }
    return Review(**values | changes)


def found(**changes: Any) -> Report:
    """Two findings: a warning that nothing exercised, and an error that gradcheck showed."""
    targets = (target(checks=(failing(),)), norm())
    findings = (finding(), arity())
    settled = with_failures(settle(findings, targets), targets)
    return report_of(findings, targets, settled=settled, public_url=PUBLIC, **changes)


def clean(**changes: Any) -> Report:
    """Nothing at all."""
    return report_of((), (target(checks=(check(),)),), public_url=PUBLIC, **changes)


def without_gate(report: Report, *, passed: bool) -> Report:
    """The same with a gate that came out so, and no conditions."""
    return report.model_copy(update={"gate": report.gate.model_copy(update={"passed": passed, "conditions": []})})


def changed(report: Report, **changes: Any) -> Report:
    """The same, with each finding changed."""
    return report.model_copy(update={"findings": [finding.model_copy(update=changes) for finding in report.findings]})


def many(number: int, path: str = "pkg/a.py", **changes: Any) -> Report:
    """As many findings, each of a fingerprint of its own, one a line."""
    first = found().findings[0]
    findings = [
        first.model_copy(
            update={"fingerprint": f"{index:032x}", "path": path, "start_line": index + 1, "end_line": index + 1}
            | changes
        )
        for index in range(number)
    ]
    return without_gate(clean(), passed=False).model_copy(update={"findings": findings})


def silent(rule: str) -> GatePolicy:
    """A policy in which a rule is monitored only."""
    return GatePolicy(modes={rule: RuleMode.MONITOR})


def diff(contents: Mapping[str, bytes], before: Mapping[str, bytes] | None = None, **changes: Any) -> PullRequestDiff:
    """The diff of a pull request that brings files from `before` (none) to `contents`."""
    return read_diff(
        ChangedFile(
            path,
            "added",
            patch=computed_patch((before or {}).get(path), content),
            **{"blob_sha": git_blob_sha(content)} | changes,
        )
        for path, content in contents.items()
    )


def with_fix(report: Report, *edits: EditInfo, **changes: Any) -> Report:
    """The same, with a fix for its first finding: safe and verified, unless said otherwise."""
    values: dict[str, Any] = {
        "safety": "safe",
        "edits": list(edits) or [NORMALISE],
        "verified": True,
        "verified_reason": "the fixed code is clean at the input that showed the fault",
    }
    head: FindingInfo = report.findings[0].model_copy(update={"fix": FixInfo(**values | changes)})
    return report.model_copy(update={"findings": [head, *report.findings[1:]]})


def edit(first: tuple[int, int], last: tuple[int, int], replacement: str) -> EditInfo:
    """Replace from one place (line, column) to another."""
    return EditInfo(
        start_line=first[0], start_column=first[1], end_line=last[0], end_column=last[1], replacement=replacement
    )


NORMALISE = edit((18, 16), (18, 28), "torch.nn.functional.normalize(x)")
