"""The report for a terminal: what is wrong, where, what execution said, and what was not run and why.

Plain text, with colour only where it is asked for. Nothing that comes from submitted code may steer the terminal.
"""

from __future__ import annotations

import difflib
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.reports import harnesses
from services.reports.document import CheckInfo, EditInfo, FindingInfo, Harness, RelatedInfo, Report, TargetInfo
from services.reports.environment import environment_facts
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.gradient_evidence import gradient_evidence
from services.reports.harnesses import NotRun
from services.reports.sources import (
    QuotedLine,
    Sources,
    cut,
    excerpt,
    line_region,
    lines_around,
    region_of,
    shifted,
    shown_region,
)
from services.reports.stories import rule_findings
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
_FIX_WORDS = {"safe": "a safe fix (`gradproof fix`)", "unsafe": "an unsafe one (`gradproof fix --unsafe`)"}
# What makes a line of a log a command to GitHub's runner: `::` at its beginning, blanks aside, or `##[` anywhere. A
# message that quotes code, or the name of a directory, may hold either.
_COMMAND = re.compile(r"^(\s*(?:\x1b\[[\d;]*m)*\s*)::", re.MULTILINE)
_NAMED = 4
_LONGEST_NAME = 48
_LONGEST_DETAIL = 200
_LONGEST_DIFF = 12
_WHOLE = 1_000_000


@dataclass(frozen=True, slots=True)
class _Note:
    """A quoted line, what is said about what is marked in it, and what it is underlined with."""

    line: QuotedLine
    style: str
    message: str = ""
    sign: str = "^"


class TextFormat(ReportFormat):
    """The report as a person reads it in a terminal or a log."""

    name = "text"
    title = "Text"
    media_type = "text/plain"
    extension = "txt"

    def render(self, report: Report, rendering: Rendering) -> str:
        text = "\n".join(_Writer(rendering).write(report)).rstrip("\n") + "\n"
        return _COMMAND.sub(r"\1: :", text).replace("##[", "## [")


class _Writer:
    def __init__(self, rendering: Rendering) -> None:
        self.sources: Sources = rendering.sources
        self.colour = rendering.colour
        self.width = max(rendering.width, 60)
        self._ran = True

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
        for section in (
            self.findings,
            self.failures,
            self.table,
            self.not_run,
            self.imports,
            self.missing,
            self.examples,
        ):
            lines = list(section(report))
            if lines:
                yield from lines
                if lines[-1]:
                    yield ""
        yield from self.gate(report)

    def heading(self, text: str) -> str:
        return self.paint(text, "bold")

    def findings(self, report: Report) -> Iterable[str]:
        self._ran = bool(report.summary.checks)
        explained: set[str] = set()
        for finding in sorted((item for item in rule_findings(report) if item.is_new), key=_order):
            yield from self.finding(finding, harnesses.harness_of(report, finding))
            if finding.rule not in explained:
                explained.add(finding.rule)
                yield from self.explanation(finding)
            yield ""

    def finding(self, finding: FindingInfo, harness: Harness | None) -> Iterable[str]:
        style = _SEVERITY_STYLE[finding.severity]
        mark = "" if finding.triage == "open" else f"  ({finding.triage.replace('_', ' ')})"
        verdict = ""
        if self._ran:
            verdict = f"  {self.paint(finding.verdict.replace('_', ' '), _VERDICT_STYLE[finding.verdict])}"
        yield (
            f"{self.paint(one_line(f'{finding.place}:{finding.start_column}'), 'bold')}  "
            f"{self.paint(finding.severity, style, 'bold')}  {self.paint(one_line(finding.rule), 'bold')} "
            f"{one_line(finding.name)}{verdict}{mark}"
        )
        yield from self.wrap(finding.message, "  ")
        yield from self.path(finding, style)
        if finding.verdict_reason and self._ran:
            yield from self.wrap(f"{finding.verdict.replace('_', ' ')}: {finding.verdict_reason}", "  ")
            if harness is not None:
                yield from self.wrap(harnesses.grade_sentence(harness), "  ")
        if finding.fix.edits:
            yield from self.fix(finding)

    def explanation(self, finding: FindingInfo) -> Iterable[str]:
        link = one_line(finding.explanation_url)
        yield self.paint(f"  why: {link if '://' in link else f'gradproof explain {one_line(finding.rule)}'}", "dim")

    def path(self, finding: FindingInfo, style: str) -> Iterable[str]:
        """The place with what explains it: related places of the same lines of sight in one excerpt, others behind."""
        region = shown_region(self.sources, finding)
        notes = [_Note(line, style) for line in excerpt(self.sources, region, longest=_WHOLE)]
        elsewhere: list[RelatedInfo] = []
        for related in finding.related:
            quoted = excerpt(self.sources, region_of(related), context=0, most=1, longest=_WHOLE)
            if (related.path, related.cell) == (finding.path, finding.cell) and quoted and notes:
                notes.append(_Note(quoted[0], "cyan", related.message, "-"))
            else:
                elsewhere.append(related)
        yield from self.quote(notes)
        for related in elsewhere:
            yield from self.wrap(f"{related.place}: {related.message}", "  ")
            quoted = excerpt(self.sources, region_of(related), context=0, most=1, longest=_WHOLE)
            yield from self.quote([_Note(line, "cyan", sign="-") for line in quoted])

    def fix(self, finding: FindingInfo) -> Iterable[str]:
        safe = finding.fix.safety == "safe"
        note = "the same values wherever they were finite" if safe else "look at it: values may change"
        yield f"  {self.paint('fix', 'green' if safe else 'yellow')} ({finding.fix.safety}, {note}):"
        changes = list(_changes(lines_around(self.sources, region_of(finding)), finding.fix.edits))
        for sign, line in changes[:_LONGEST_DIFF]:
            text = _on_screen(cut(line, self.width - 6).text)
            yield self.paint(f"    {sign} {text}".rstrip(), "red" if sign == "-" else "green")
        if len(changes) > _LONGEST_DIFF:
            yield f"    … and {len(changes) - _LONGEST_DIFF} lines more"

    def quote(self, notes: Sequence[_Note]) -> Iterable[str]:
        """Source lines in their order, each with what points into it."""
        if not notes:
            return
        by_line: dict[int, list[_Note]] = {}
        for note in notes:
            by_line.setdefault(note.line.number, []).append(note)
        gutter = max(len(str(max(by_line))), 2)
        bar = self.paint(" " * gutter + " |", "dim")
        previous = min(by_line)
        for number in sorted(by_line):
            if number > previous + 1:
                yield self.paint("  " + "…".rjust(gutter), "dim")
            previous = number
            # What one line is shown for first decides where a long line is cut.
            marked = [note for note in by_line[number] if note.line.mark is not None]
            shown = cut((marked or by_line[number])[0].line, self.width - gutter - 5)
            yield f"  {self.paint(f'{number:>{gutter}} |', 'dim')} {_on_screen(shown.text)}".rstrip()
            for note in marked:
                yield from self._pointer(note, shifted(replace(shown, mark=note.line.mark), shown.start), bar)

    def _pointer(self, note: _Note, line: QuotedLine, bar: str) -> Iterable[str]:
        begin, end = (columns(_on_screen(line.text[:column])) for column in line.mark or (0, 1))
        pointer = f"  {bar} {' ' * begin}{self.paint(note.sign * max(end - begin, 1), note.style)}"
        message = one_line(note.message)
        if self.width - len("  999 | ") - max(end, begin + 1) - 1 >= columns(message):
            yield f"{pointer} {self.paint(message, note.style)}" if message else pointer
            return
        yield pointer
        for text in textwrap.wrap(message, self.width - 12, break_long_words=False, break_on_hyphens=False):
            yield f"  {bar}   {self.paint(text, note.style)}"

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
        if check.seen_from_base:
            yield from self.wrap(check.seen_from_base, "      ")
        yield from self.quote(
            [
                _Note(each, "red")
                for each in excerpt(self.sources, line_region(self.sources, path, line), longest=_WHOLE)
            ]
        )
        if check.diagnosis is not None:
            said = "" if check.diagnosis.text == check.summary else f": {check.diagnosis.text}"
            yield from self.wrap(f"cause: {check.diagnosis.cause}{said}", "      ")
        for label, fact in gradient_evidence(check.evidence).facts():
            yield from self.wrap(f"{label}: {fact}", "      ")
        if target.harness is not None:
            yield from self.wrap(harnesses.called(target.harness), "      ")
            from_where = f" ({target.harness.provenance})" if target.harness.provenance else ""
            yield from self.wrap(f"{harnesses.grade_sentence(target.harness)}{from_where}", "      ")
        if check.repro:
            yield self.paint("      --format html and --format json hold one file that reproduces it", "dim")

    def table(self, report: Report) -> Iterable[str]:
        ran = [target for target in report.targets if target.checks]
        if not ran:
            return
        checks = list(dict.fromkeys(check.check for target in ran for check in target.checks))
        devices = {check.device for target in ran for check in target.checks}
        rows = [
            [
                shorten(one_line(target.name), _LONGEST_NAME),
                target.harness.grade if target.harness is not None else "-",
                *(_cell(target, name, len(devices) > 1) for name in checks),
            ]
            for target in ran
        ]
        head = ["Checks", "grade", *(one_line(check) for check in checks)]
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        yield self.heading("  ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip())
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            for cell, width in zip(row[1:], widths[1:], strict=True):
                style = next((_VERDICT_STYLE[v] for v in _WORST if v in cell), "dim")
                cells.append(self.paint(cell, style) + " " * (width - len(cell)))
            yield "  ".join(cells).rstrip()
        for grade, means in harnesses.GRADES.items():
            if any(row[1] == grade for row in rows):
                yield self.paint(f"  {grade}: {means}", "dim")

    def not_run(self, report: Report) -> Iterable[str]:
        groups = harnesses.not_run(report)
        if groups:
            yield self.heading("Not run")
        for group in groups:
            yield from self._group(group)
        apart = harnesses.not_eligible(report)
        if apart:
            yield self.heading("Counted apart: no gradient to look at, or files wanted that are not here")
            yield from self.wrap(", ".join(f"{len(group.targets)} x {one_line(group.reason)}" for group in apart), "  ")
        yield from self._named(
            "Not decided",
            [
                (target.name, f"{check.check} {_UNDECIDED[check.verdict]}: {one_line(check.summary)}")
                for target in report.targets
                for check in target.checks
                if check.verdict in _UNDECIDED
            ],
        )

    def _group(self, group: NotRun) -> Iterable[str]:
        yield from self.wrap(f"{len(group.targets)} x {shorten(one_line(group.reason), 300)}", "  ")
        for target in group.targets[:_NAMED]:
            said = f": {shorten(one_line(target.not_run_detail), _LONGEST_DETAIL)}" if target.not_run_detail else ""
            yield from self.wrap(f"{one_line(target.name)}{said}", "      ")
        if len(group.targets) > _NAMED:
            yield f"      and {len(group.targets) - _NAMED} more"
        if group.next_step:
            yield from self.wrap(group.next_step, "      ")
        for line in group.snippet.splitlines():
            yield self.paint(f"          {one_line(line)}", "dim")

    def examples(self, report: Report) -> Iterable[str]:
        told = harnesses.examples(report)
        if told is None or not (told.items or told.why_not):
            return
        counts = ", ".join(f"{count} {outcome}" for outcome, count in told.outcomes)
        yield self.heading("Examples of the repository")
        if told.items:
            yield from self.wrap(f"{counts}; {_counted(told.captured, 'call')} of targets taken from them", "  ")
        if told.why_not:
            yield from self.wrap(told.why_not, "  ")

    def imports(self, report: Report) -> Iterable[str]:
        if not report.imports or not self._ran:
            return
        yield self.heading("Work done at import")
        for note in report.imports[:_LONGEST_DIFF]:
            yield from self.wrap(f"{note.path}:{note.line} {note.kind}: {note.detail}", "  ")
        if len(report.imports) > _LONGEST_DIFF:
            yield f"  and {len(report.imports) - _LONGEST_DIFF} more"

    def missing(self, report: Report) -> Iterable[str]:
        if not report.missing:
            return
        yield self.heading("Missing packages")
        for item in report.missing:
            name = one_line(item.imported)
            imported = "" if item.imported == item.package else f" (imported as {name})"
            yield from self.wrap(f"{one_line(item.package)}{imported}: {_counted(item.targets, 'target')}", "  ")

    def _named(self, heading: str, items: Sequence[tuple[str, str]]) -> Iterable[str]:
        if not items:
            return
        yield self.heading(heading)
        for reason, count in Counter(reason for _, reason in items).most_common():
            names = [one_line(name) for name, why in items if why == reason]
            shown = ", ".join(names[:_NAMED]) + (f" and {count - _NAMED} more" if count > _NAMED else "")
            yield from self.wrap(f"{count} x {shorten(one_line(reason), 300)}", "  ")
            yield from self.wrap(shown, "      ")

    def baseline(self, report: Report) -> Iterable[str]:
        if report.baseline is None:
            return
        file = one_line(report.baseline.file)
        gone = report.baseline.gone
        if gone:
            was = "entry of the baseline is" if len(gone) == 1 else "entries of the baseline are"
            yield from self.wrap(f"{len(gone)} {was} no longer found; --write-baseline {file} removes them:", "")
            for entry in gone[:_LONGEST_DIFF]:
                yield from self.wrap(f"{entry.rule} in {entry.path}: {shorten(one_line(entry.message), 120)}", "    ")
            if len(gone) > _LONGEST_DIFF:
                yield f"    … and {len(gone) - _LONGEST_DIFF} more"

    def gate(self, report: Report) -> Iterable[str]:
        summary = report.summary
        found = ", ".join(
            _counted(summary.findings[severity], severity)
            for severity in _SEVERITY_STYLE
            if severity in summary.findings
        )
        read = f"{_counted(report.snapshot.files, 'file')}, {_counted(report.snapshot.lines, 'line')} read"
        read += f": {found or 'nothing found'}"
        fixes: Counter[str] = Counter(
            finding.fix.safety for finding in report.findings if finding.fix.edits and not finding.cell
        )
        if fixes:
            offered = [f"{fixes[safety]} with {words}" for safety, words in _FIX_WORDS.items() if fixes[safety]]
            read += f", {' and '.join(offered)}"
        known = sum(not finding.is_new for finding in report.findings)
        if known:
            read += f"; {known} known and not shown"
        if summary.suppressed:
            read += f"; {summary.suppressed} suppressed in source"
        yield from self.wrap(read, "")
        if summary.checks or report.tool.torch:
            ran = (
                f"targets: {summary.targets.run} of {summary.targets.found} run; checks: {_listed(summary.checks)}; "
                f"sandbox: {report.tool.sandbox}"
            )
            if report.analysis.peak_memory:
                ran += f", {report.analysis.peak_memory} at most"
            if report.tool.torch:
                ran += f"; torch {report.tool.torch} on {', '.join(report.tool.devices)}"
            if summary.targets.not_eligible:
                ran += f"; {_counted(sum(summary.targets.not_eligible.values()), 'other')} counted apart"
            yield from self.wrap(ran, "")
        elif summary.targets.found:
            yield from self.wrap(f"nothing was run; {_counted(summary.targets.found, 'target')} could be", "")
        for fact in environment_facts(report.tool.environment):
            yield from self.wrap(fact, "")
        yield from self.baseline(report)
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


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for wide characters, none for those that combine."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _order(finding: FindingInfo) -> tuple[str, int, int, int]:
    return finding.path, finding.cell or 0, finding.start_line, finding.start_column


def _on_screen(text: str) -> str:
    return visible(text).expandtabs(4)


def _changes(lines: Sequence[str], edits: Sequence[EditInfo]) -> Iterable[tuple[str, QuotedLine]]:
    """The lines that edits take away and bring, with their signs, marked where they differ."""
    first = min(edit.start_line for edit in edits)
    last = max(edit.end_line for edit in edits)
    if not 1 <= first <= last <= len(lines):
        for edit in edits:
            for line in edit.replacement.split("\n"):
                yield "+", QuotedLine(0, line)
        return
    before = list(lines[first - 1 : last])
    text = "\n".join(before)
    starts = [0]
    for line in before:
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda edit: (edit.start_line, edit.start_column), reverse=True):
        begin = starts[edit.start_line - first] + edit.start_column - 1
        end = starts[edit.end_line - first] + edit.end_column - 1
        text = text[:begin] + edit.replacement + text[end:]
    matcher = difflib.SequenceMatcher(None, before, after := text.split("\n"), autojunk=False)
    for tag, a_start, a_end, b_start, b_end in matcher.get_opcodes():
        if tag != "equal":
            old, new = before[a_start:a_end], after[b_start:b_end]
            column = _first_difference(old[0], new[0]) if len(old) == len(new) == 1 else 0
            yield from (("-", QuotedLine(0, line, (column, column + 1))) for line in old)
            yield from (("+", QuotedLine(0, line, (column, column + 1))) for line in new)


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((column for column, (left, right) in pairs if left != right), min(len(one), len(other)))


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
