"""The report for a terminal: what is wrong, where, what execution said, and what was not run and why.

Plain text, with colour only where it is asked for. Nothing that comes from submitted code may steer the terminal.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from analyzer.findings import Region
from services.reports.document import CheckInfo, FindingInfo, Report, TargetInfo
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.sources import Sources, excerpt, line_region, region_of
from services.reports.untrusted import one_line, shorten, visible

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_SEVERITY_STYLE = {"error": "red", "warning": "yellow", "note": "blue"}
_VERDICT_STYLE = {
    "confirmed": "red",
    "not_reproduced": "green",
    "not_exercised": "yellow",
    "static_only": "dim",
    "pass": "green",
    "fail": "red",
    "inconclusive": "yellow",
    "skipped": "dim",
    "error": "yellow",
}
_NAMED = 4
_LONGEST_NAME = 48


class TextFormat(ReportFormat):
    """The report as a person reads it in a terminal or a log."""

    name = "text"
    title = "Text"
    media_type = "text/plain"
    extension = "txt"

    def render(self, report: Report, rendering: Rendering) -> str:
        return "\n".join(_Writer(rendering).write(report)).rstrip("\n") + "\n"


class _Writer:
    def __init__(self, rendering: Rendering) -> None:
        self.sources: Sources = rendering.sources
        self.colour = rendering.colour
        self.width = max(rendering.width, 60)

    def paint(self, text: str, *styles: str) -> str:
        if not self.colour or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def wrap(self, text: str, indent: str) -> list[str]:
        return textwrap.wrap(
            one_line(text),
            width=self.width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [indent.rstrip()]

    def write(self, report: Report) -> Iterable[str]:
        for section in (self.findings, self.failures, self.table, self.not_run):
            lines = list(section(report))
            if lines:
                yield from lines
                yield ""
        yield from self.gate(report)

    def heading(self, text: str) -> str:
        return self.paint(text, "bold")

    def findings(self, report: Report) -> Iterable[str]:
        findings = sorted(report.findings, key=lambda finding: (finding.path, finding.start_line, finding.start_column))
        for path, group in groupby(findings, key=lambda finding: finding.path):
            yield self.heading(one_line(path))
            for finding in group:
                yield from self.finding(finding)
            yield ""

    def finding(self, finding: FindingInfo) -> Iterable[str]:
        verdict = finding.verdict.replace("_", " ")
        marks = [] if finding.is_new else ["known"]
        if finding.triage != "open":
            marks.append(finding.triage.replace("_", " "))
        yield (
            f"  {finding.start_line}:{finding.start_column}  "
            f"{self.paint(finding.severity, _SEVERITY_STYLE[finding.severity], 'bold')}  "
            f"{self.paint(one_line(finding.rule), 'bold')} {one_line(finding.name)}  "
            f"{self.paint(verdict, _VERDICT_STYLE[finding.verdict])}{''.join(f'  ({mark})' for mark in marks)}"
        )
        yield from self.wrap(finding.message, "      ")
        yield from self.quote(region_of(finding), _SEVERITY_STYLE[finding.severity])
        for related in finding.related:
            yield from self.wrap(f"{related.path}:{related.start_line}: {related.message}", "      ")
        if finding.verdict_reason:
            yield from self.wrap(f"{verdict}: {finding.verdict_reason}", "      ")
        if finding.fix.edits:
            yield from self.fix(finding)
        link = one_line(finding.explanation_url)
        yield self.paint(
            f"      why: {link if '://' in link else f'gradproof explain {one_line(finding.rule)}'}", "dim"
        )

    def fix(self, finding: FindingInfo) -> Iterable[str]:
        safe = finding.fix.safety == "safe"
        note = "the same values wherever they were finite" if safe else "look at it: values may change"
        yield f"      {self.paint('fix', 'green' if safe else 'yellow')} ({finding.fix.safety}, {note}):"
        for edit in finding.fix.edits:
            for line in visible(edit.replacement).split("\n")[:_NAMED]:
                yield f"        {self.paint('+', 'green')} {shorten(line, self.width)}"

    def quote(self, region: Region, style: str) -> Iterable[str]:
        lines = excerpt(self.sources, region)
        if not lines:
            return
        gutter = len(str(lines[-1].number))
        for line in lines:
            text = visible(line.text).expandtabs(4)
            yield f"      {self.paint(f'{line.number:>{gutter}} |', 'dim')} {text}".rstrip()
            if line.mark is not None:
                begin, end = (len(visible(line.text[:column]).expandtabs(4)) for column in line.mark)
                carets = self.paint("^" * max(end - begin, 1), style)
                yield f"      {self.paint(' ' * gutter + ' |', 'dim')} {' ' * begin}{carets}"

    def failures(self, report: Report) -> Iterable[str]:
        failing = [(target, check) for target in report.targets for check in target.checks if check.verdict == "fail"]
        if failing:
            yield self.heading("Failing checks")
        for target, check in failing:
            yield from self.failure(target, check)

    def failure(self, target: TargetInfo, check: CheckInfo) -> Iterable[str]:
        path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
        yield (
            f"  {self.paint('fail', 'red', 'bold')}  {self.paint(one_line(check.check), 'bold')} on "
            f"{one_line(target.name)} ({one_line(check.device)})  {one_line(path)}:{line}"
        )
        yield from self.wrap(check.summary, "      ")
        yield from self.quote(line_region(self.sources, path, line), "red")
        if check.diagnosis is not None:
            said = "" if check.diagnosis.text == check.summary else f": {check.diagnosis.text}"
            yield from self.wrap(f"cause: {check.diagnosis.cause}{said}", "      ")
        if target.harness is not None:
            built = f" as {target.harness.constructor}" if target.harness.constructor else ""
            inputs = ", ".join(target.harness.inputs) or "nothing"
            yield from self.wrap(f"called{built} with {inputs}", "      ")
        if check.repro:
            yield self.paint("      --format html and --format json hold one file that reproduces it", "dim")

    def table(self, report: Report) -> Iterable[str]:
        ran = [target for target in report.targets if target.checks]
        if not ran:
            return
        checks = list(dict.fromkeys(check.check for target in ran for check in target.checks))
        devices = {check.device for target in ran for check in target.checks}
        rows = [
            [shorten(one_line(target.name), _LONGEST_NAME), *(_cell(target, name, len(devices) > 1) for name in checks)]
            for target in ran
        ]
        head = ["Checks", *(one_line(check) for check in checks)]
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        yield self.heading("  ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip())
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            for cell, width in zip(row[1:], widths[1:], strict=True):
                style = next((_VERDICT_STYLE[v] for v in _WORST if v in cell), "dim")
                cells.append(self.paint(cell, style) + " " * (width - len(cell)))
            yield "  ".join(cells).rstrip()

    def not_run(self, report: Report) -> Iterable[str]:
        yield from self._named(
            "Not run",
            [(target.name, target.not_run_reason) for target in report.targets if target.not_run_reason is not None],
        )
        yield from self._named(
            "Not decided",
            [
                (target.name, f"{check.check} {_UNDECIDED[check.verdict]}: {one_line(check.summary)}")
                for target in report.targets
                for check in target.checks
                if check.verdict in _UNDECIDED
            ],
        )

    def _named(self, heading: str, items: Sequence[tuple[str, str]]) -> Iterable[str]:
        if not items:
            return
        yield self.heading(heading)
        for reason, count in Counter(reason for _, reason in items).most_common():
            names = [one_line(name) for name, why in items if why == reason]
            shown = ", ".join(names[:_NAMED]) + (f" and {count - _NAMED} more" if count > _NAMED else "")
            yield from self.wrap(f"{count} x {shorten(one_line(reason), 300)}", "  ")
            yield from self.wrap(shown, "      ")

    def gate(self, report: Report) -> Iterable[str]:
        summary = report.summary
        read = (
            f"{_counted(report.snapshot.files, 'file')}, {_counted(report.snapshot.lines, 'line')}; "
            f"findings: {_listed(summary.findings)}"
        )
        if summary.suppressed:
            read += f" ({summary.suppressed} suppressed in source)"
        ran = (
            f"targets: {summary.targets.run} of {summary.targets.found} run; checks: {_listed(summary.checks)}; "
            f"sandbox: {report.tool.sandbox}"
        )
        if report.tool.torch:
            ran += f"; torch {report.tool.torch} on {', '.join(report.tool.devices)}"
        yield from self.wrap(read, "")
        yield from self.wrap(ran, "")
        if report.analysis.reason:
            yield from self.wrap(f"The analysis is {report.analysis.status}: {report.analysis.reason}", "")
        if report.analysis.status in {"queued", "running"}:
            yield self.paint(f"The gate is not decided yet: the analysis is {report.analysis.status}", "bold")
            return
        passed = report.gate.passed
        took = f" in {report.analysis.duration_s:.1f} s" if report.analysis.duration_s is not None else ""
        yield self.paint(f"Gate {'passed' if passed else 'failed'}{took}", "bold", "green" if passed else "red")
        for condition in report.gate.conditions:
            mark = self.paint("ok  ", "green") if condition.passed else self.paint("FAIL", "red")
            yield from _hang(mark, self.wrap(f"{condition.name}: {condition.explanation}", "       "))


_WORST = ("fail", "error", "inconclusive", "pass", "skipped")
_UNDECIDED = {"error": "could not run", "inconclusive": "was inconclusive", "skipped": "skipped"}


def _cell(target: TargetInfo, name: str, with_device: bool) -> str:  # noqa: FBT001 - private
    verdicts = dict.fromkeys(
        f"{check.verdict} ({one_line(check.device)})" if with_device else check.verdict
        for check in target.checks
        if check.check == name
    )
    return ", ".join(verdicts) or "-"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _hang(mark: str, lines: list[str]) -> Iterable[str]:
    yield f"  {mark} {lines[0].lstrip()}"
    yield from lines[1:]
