"""Markdown for a pull request or an issue: short, and safe to post.

Everything that comes from the repository is untrusted. On a forge it could mention people, close issues, forge the
marker of a bot's comment, or load a tracking image; so texts are escaped, names go into code spans (where mentions
and references are not read) and code into fences longer than any run of back-ticks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, Harness, Report, TargetInfo
from services.reports.environment import environment_facts
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.gradient_evidence import gradient_evidence
from services.reports.sources import QuotedLine, excerpt, shown_region
from services.reports.stories import rule_findings
from services.reports.untrusted import one_line, shorten, visible

# GitHub refuses a body of more than 65,536 characters; the rest is left to the report itself, never cut in a fence.
_MAXIMUM = 60_000
_LONGEST_TEXT = 2_000
_ZERO_WIDTH_SPACE = "\u200b"
_SYNTAX = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&^$=:])")
# `@name`, `#12`, `!12` and `GH-12` become links in the text that Markdown leaves behind, escaped or not: a character
# of no width between the sign and the name is what stops them. Bare addresses are linked as well.
_REFERENCE = re.compile(r"(?<!\w)(@|#|!|GH-|gh-)(?=\w)|(?<=\w)([#@!])(?=\w)")
_ADDRESS = re.compile(r"(?i)(://|\bwww\.|\bmailto:)")

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}

_VERDICT_MARK = {"pass": "✓", "fail": "✗", "inconclusive": "?", "skipped": "-", "error": "!"}


def text(value: str) -> str:
    """Untrusted text as one line of plain Markdown text: no markup, mention, reference, link or image."""
    broken = _broken(shorten(one_line(value), _LONGEST_TEXT))
    # In one pass: of two, the second would take the end of an escaped backslash for an escape.
    return _SYNTAX.sub(lambda match: _ENTITIES.get(match.group(), f"\\{match.group()}"), broken)


def code(value: str) -> str:
    """Untrusted text as one code span, whatever back-ticks it holds; `|` is escaped, so that it fits into a table."""
    value = shorten(one_line(value), _LONGEST_TEXT) or " "
    fence = "`" * (_longest_run(value) + 1)
    padding = " " if value.startswith("`") or value.endswith("`") else ""
    return f"{fence}{padding}{value}{padding}{fence}".replace("|", "\\|")


def block(value: str, language: str = "") -> str:
    """Untrusted text as a fenced block, whatever back-ticks it holds."""
    value = visible(value).rstrip("\n")
    fence = "`" * max(3, _longest_run(value) + 1)
    return f"{fence}{language}\n{value}\n{fence}"


def _broken(value: str) -> str:
    value = _REFERENCE.sub(lambda match: match.group() + _ZERO_WIDTH_SPACE, value)
    return _ADDRESS.sub(lambda match: match.group()[:-1] + _ZERO_WIDTH_SPACE + match.group()[-1], value)


def _longest_run(value: str) -> int:
    return max((len(run) for run in re.findall("`+", value)), default=0)


class MarkdownFormat(ReportFormat):
    """The report as GitHub-flavoured Markdown."""

    name = "markdown"
    title = "Markdown"
    media_type = "text/markdown"
    extension = "md"

    def render(self, report: Report, rendering: Rendering) -> str:
        parts = [_head(report)]
        sections = [
            _findings(report, rendering),
            _failures(report),
            _table(report),
            _not_run(report),
        ]
        length = len(parts[0])
        for section in sections:
            for part in section:
                if length + len(part) > _MAXIMUM:
                    parts.append("… the rest is in the whole report.")
                    return "\n\n".join(parts) + "\n"
                parts.append(part)
                length += len(part) + 2
        return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    verdict = "gate passed" if report.gate.passed else "gate failed"
    if report.analysis.status in {"queued", "running"}:
        verdict = f"{report.analysis.status}, the gate is not decided yet"
    lines = [f"## Gradproof: {verdict}", ""]
    lines += [
        f"- {'✓' if condition.passed else '✗'} **{text(condition.name)}**: {text(condition.explanation)}"
        for condition in report.gate.conditions
    ]
    counts = report.summary
    severities = ", ".join(f"{count} {severity}" for severity, count in sorted(counts.findings.items())) or "none"
    checks = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.checks.items())) or "none"
    lines += [
        "",
        f"Findings: {severities} ({counts.suppressed} suppressed in source). Checks: {checks}. "
        f"Targets: {counts.targets.run} of {counts.targets.found} run.",
    ]
    lines += [line for fact in environment_facts(report.tool.environment) for line in ("", f"{text(fact)}.")]
    if report.missing:
        lacking = ", ".join(f"{code(item.package)} ({item.targets})" for item in report.missing)
        lines += ["", f"Missing packages, with the targets that lack them: {lacking}."]
    if report.analysis.reason:
        lines += ["", f"The analysis is {report.analysis.status}: {text(report.analysis.reason)}"]
    return "\n".join(lines)


def _findings(report: Report, rendering: Rendering) -> Iterable[str]:
    findings = rule_findings(report)
    if findings:
        yield "### Findings"
    for finding in findings:
        yield _finding(finding, harnesses.harness_of(report, finding), rendering)


def _finding(finding: FindingInfo, harness: Harness | None, rendering: Rendering) -> str:
    lines = [
        f"**{text(finding.rule)} {text(finding.name)}** ({finding.severity}, {finding.verdict.replace('_', ' ')}) at "
        f"{code(f'{finding.place}:{finding.start_column}')}",
        "",
        text(finding.message),
    ]
    quoted = excerpt(rendering.sources, shown_region(rendering.sources, finding))
    if quoted:
        lines += ["", block(_numbered(quoted), "python")]
    lines += ["", f"{text(finding.verdict_reason)} [Why]({_address(finding.explanation_url)})"]
    if harness is not None:
        lines += ["", text(f"{harnesses.grade_sentence(harness)}.")]
    return "\n".join(lines)


def _numbered(quoted: Sequence[QuotedLine]) -> str:
    return "\n".join(f"{line.number:>5}  {line.text}" for line in quoted)


def _address(url: str) -> str:
    """A link target of our own making, with what would end it percent-encoded."""
    return re.sub(r"[\s()<>\"]", lambda match: f"%{ord(match.group()):02X}", url)


def _failures(report: Report) -> Iterable[str]:
    failing = [(target, check) for target in report.targets for check in target.checks if check.verdict == "fail"]
    if failing:
        yield "### Failing checks"
    for target, check in failing:
        yield _failure(target, check)


def _failure(target: TargetInfo, check: CheckInfo) -> str:
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    lines = [
        f"**{text(check.check)}** on {code(target.name)} ({text(check.device)}) at {code(f'{path}:{line}')}",
        "",
        text(check.summary),
        *(["", f"Seen from the base: {text(check.seen_from_base)}"] if check.seen_from_base else []),
    ]
    if check.diagnosis is not None:
        said = "" if check.diagnosis.text == check.summary else f": {text(check.diagnosis.text)}"
        lines += ["", f"Cause {code(check.diagnosis.cause)}{said}"]
    facts = gradient_evidence(check.evidence).facts()
    if facts:
        lines += ["", *(f"- {label}: {text(fact)}" for label, fact in facts)]
    if target.harness is not None:
        lines += ["", *_harness(target.harness)]
    if check.repro:
        lines += [
            "",
            "<details><summary>Repro</summary>",
            "",
            block(check.repro, "python"),
            "",
            "</details>",
        ]
    return "\n".join(lines)


def _harness(harness: Harness) -> Iterable[str]:
    yield f"{text(f'{harnesses.grade_sentence(harness)}.')} Called as {code(harnesses.called(harness))}."
    if harness.variants:
        yield ""
        yield f"Also tried: {code(harnesses.options(harness))}."
    if harness.code:
        yield from ("", "<details><summary>Harness</summary>", "", block(harness.code, "python"), "", "</details>")


def _table(report: Report) -> Iterable[str]:
    ran = [target for target in report.targets if target.checks]
    if not ran:
        return
    checks = list(dict.fromkeys(check.check for target in ran for check in target.checks))
    yield "### Checks"
    rows = [f"| target | grade | {' | '.join(text(check) for check in checks)} |", f"|---|---|{'---|' * len(checks)}"]
    for target in ran:
        cells = []
        for name in checks:
            results = [check for check in target.checks if check.check == name]
            cells.append(
                "<br>".join(f"{_VERDICT_MARK[check.verdict]} {check.verdict} {text(check.device)}" for check in results)
            )
        grade = target.harness.grade if target.harness is not None else "-"
        rows.append(f"| {code(target.name)} | {grade} | {' | '.join(cells)} |")
    yield "\n".join(rows)
    grades = {target.harness.grade for target in ran if target.harness is not None}
    yield "; ".join(f"{grade}: {text(means)}" for grade, means in harnesses.GRADES.items() if grade in grades) + "."


def _not_run(report: Report) -> Iterable[str]:
    groups = harnesses.not_run(report)
    if groups:
        yield "### Not run"
        rows = ["| reason | targets | next step |", "|---|---|---|"]
        for group in groups:
            names = ", ".join(code(target.name) for target in group.targets[:5])
            more = f" and {len(group.targets) - 5} more" if len(group.targets) > 5 else ""
            rows.append(f"| {text(group.reason)} ({len(group.targets)}) | {names}{more} | {text(group.next_step)} |")
        yield "\n".join(rows)
    snippet = next((group.snippet for group in groups if group.snippet), "")
    if snippet:
        yield f"To declare one, in `pyproject.toml`:\n\n{block(snippet, 'toml')}"
    apart = harnesses.not_eligible(report)
    if apart:
        counts = ", ".join(f"{len(group.targets)} {text(group.reason)}" for group in apart)
        yield f"Counted apart, with no gradient to look at or files wanted that are not here: {counts}."
