"""Workflow commands for GitHub Actions: annotations on the lines of a pull request, without any permission.

GitHub shows at most ten annotations of each level a step and drops the others silently. So the gravest come first, and
what does not fit is listed in the log, with a notice that says how many. Texts are untrusted: a line of the log that
begins with `::`, or holds `##[`, would be a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analyzer.findings import Region
from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, Report, TargetInfo
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.gradient_evidence import gradient_evidence
from services.reports.sources import Sources, file_region, line_region, shown_region
from services.reports.stories import rule_findings, untold_failures
from services.reports.untrusted import one_line, shorten, visible

MAXIMUM_A_LEVEL = 10
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
_LONGEST_MESSAGE = 4_000  # GitHub's own limit lies at 64 kB; nobody reads that in a margin


@dataclass(frozen=True, slots=True)
class _Annotation:
    level: str
    region: Region
    place: str
    title: str
    message: str


class GithubFormat(ReportFormat):
    """New findings and failing checks as annotations; what is known already is left out."""

    name = "github"
    title = "GitHub workflow commands"
    media_type = "text/plain"
    extension = "github.txt"

    def render(self, report: Report, rendering: Rendering) -> str:
        annotations = [
            *_failures(report, rendering.sources),
            *(
                _finding(finding, rendering.sources)
                for finding in rule_findings(report)
                if finding.is_new and finding.triage not in {"accepted", "false_positive"}
            ),
        ]
        shown: list[_Annotation] = []
        left_out: list[_Annotation] = []
        for level in _LEVELS.values():
            of_level = [annotation for annotation in annotations if annotation.level == level]
            # The last notice says that there are others.
            room = MAXIMUM_A_LEVEL - (level == "notice" and bool(left_out or len(of_level) > MAXIMUM_A_LEVEL))
            shown.extend(of_level[:room])
            left_out.extend(of_level[room:])
        lines = [_command(annotation) for annotation in shown]
        if left_out:
            lines += _list(left_out)
        lines.append(_log(_summary(report)))
        return "\n".join(lines) + "\n"


def _finding(finding: FindingInfo, sources: Sources) -> _Annotation:
    severity = "note" if finding.verdict == "not_reproduced" else finding.severity
    said = finding.message
    if finding.verdict in {"confirmed", "not_reproduced"}:
        said += f"\n{finding.verdict.replace('_', ' ')}: {finding.verdict_reason}"
    return _Annotation(
        level=_LEVELS[severity],
        region=file_region(sources, shown_region(sources, finding)),
        place=finding.place,
        title=f"{finding.rule} {finding.name}",
        message=f"cell {finding.cell}, line {finding.start_line}: {said}" if finding.cell else said,
    )


def _failures(report: Report, sources: Sources) -> Iterable[_Annotation]:
    for target, check in untold_failures(report):
        yield _failure(target, check, sources)


def _failure(target: TargetInfo, check: CheckInfo, sources: Sources) -> _Annotation:
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    cause = f"\ncause: {check.diagnosis.cause}: {check.diagnosis.text}" if check.diagnosis else ""
    facts = "".join(f"\n{label}: {fact}" for label, fact in gradient_evidence(check.evidence).facts())
    sure = f"\n{harnesses.grade_sentence(target.harness)}" if target.harness is not None else ""
    return _Annotation(
        level="error",
        region=line_region(sources, path, line),
        place=f"{path}:{line}",
        title=f"{check.check} fails on {target.name}",
        message=f"{check.summary}{cause}{facts}{sure}",
    )


def _command(annotation: _Annotation) -> str:
    region = annotation.region
    properties = {"file": visible(region.path), "line": str(region.start_line), "endLine": str(region.end_line)}
    if region.start_line == region.end_line:  # GitHub takes columns of a single line only
        properties |= {"col": str(region.start_column), "endColumn": str(region.end_column)}
    properties["title"] = one_line(annotation.title)
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{annotation.level} {written}::{_data(shorten(visible(annotation.message), _LONGEST_MESSAGE))}"


def _list(left_out: Sequence[_Annotation]) -> Iterable[str]:
    counts = ", ".join(
        f"{count} {level}{'s' if count > 1 else ''}"
        for level in _LEVELS.values()
        if (count := sum(annotation.level == level for annotation in left_out))
    )
    reason = f"GitHub shows {MAXIMUM_A_LEVEL} annotations of a level: {counts} more stand in the log of this step."
    yield f"::notice title=Gradproof::{_data(reason)}"
    yield "::group::Not annotated"
    for annotation in left_out:
        yield _log(f"{annotation.place}: {annotation.level}: {annotation.title}: {annotation.message}")
    yield "::endgroup::"


def _summary(report: Report) -> str:
    findings = ", ".join(f"{count} {name}" for name, count in sorted(report.summary.findings.items())) or "none"
    return f"Gradproof: gate {'passed' if report.gate.passed else 'failed'}; findings: {findings}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _log(text: str) -> str:
    """A line that is no command, whatever it holds."""
    return f"- {one_line(text)}".replace("##[", "## [")
