"""What the HTML report and the report page show, prepared: quoted lines cut at their marks, cells of the grid.

It decides nothing: verdicts and counts are the report's own. Escaping is the template engine's business, see
`services.reports.formats.html.environment`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from analyzer.findings import Region
from services.reports import harnesses
from services.reports.document import CheckInfo, CheckVerdict, FindingInfo, Harness, Report, TargetInfo
from services.reports.environment import environment_facts
from services.reports.gradient_evidence import GradientEvidence, gradient_evidence
from services.reports.harnesses import Examples, NotRun
from services.reports.jacobian_picture import jacobian_picture
from services.reports.portraits import KEYS, Found, Portrait, draw, failure_mark, finding_mark, read_portrait
from services.reports.sources import Sources, excerpt, line_region, shown_region
from services.reports.unit_histograms import KEY as UNITS
from services.reports.unit_histograms import unit_sentences

# A cell of a picture is 90 bytes: four pictures of the largest size make a page 1 MB longer, and sixty of 8 by 8.
_MOST_CELLS = 12_288
# A graph of a hundred boxes is 60 kB of SVG: thirty of them make a page 2 MB longer.
_MOST_BOXES: Final = 3_000
# What a report tells of a finding in words of its own: its numbers, its fix, the checks that speak of it.
_TOLD_OTHERWISE: Final = frozenset({"numbers", "fix", "checks"})
_GRAVITY: Final[tuple[CheckVerdict, ...]] = ("fail", "error", "inconclusive", "pass", "skipped")


@dataclass(frozen=True, slots=True)
class MarkedLine:
    """A quoted line cut into what stands before, in and after the mark."""

    number: int
    before: str
    marked: str
    after: str


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding with its quoted lines, and the grade of the harness that its verdict rests on (empty without one)."""

    info: FindingInfo
    anchor: str
    lines: tuple[MarkedLine, ...]
    evidence: tuple[tuple[str, str], ...]
    grade: str


@dataclass(frozen=True, slots=True)
class CheckView:
    """A check with its place, quoted if it failed.

    `facts` are what a gradient check shows for itself, `picture` is its Jacobians as SVG or empty, `portrait` the graph
    of a call and its costs, `evidence` the rest.
    """

    info: CheckInfo
    anchor: str
    path: str
    line: int
    lines: tuple[MarkedLine, ...]
    numbers: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    picture: str
    portrait: Portrait | None
    evidence: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target, its checks, and its row of the grid: the checks of each column, perhaps on several devices.

    `grade` says what its harness is worth, `options` which other values of mode arguments were tried.
    """

    info: TargetInfo
    anchor: str
    checks: tuple[CheckView, ...]
    cells: tuple[tuple[CheckView, ...], ...]
    failing: bool
    grade: str
    options: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """The whole report, prepared."""

    report: Report
    environment: tuple[str, ...]
    files: tuple[tuple[str, tuple[FindingView, ...]], ...]
    columns: tuple[str, ...]
    targets: tuple[TargetView, ...]
    grades: tuple[tuple[str, str, int], ...]
    not_run: tuple[NotRun, ...]
    not_eligible: tuple[NotRun, ...]
    examples: Examples | None


def view(report: Report, sources: Sources) -> ReportView:
    """The report prepared for a template."""
    columns = tuple(dict.fromkeys(check.check for target in report.targets for check in target.checks))
    ordered = sorted(report.findings, key=_order)
    findings = [
        finding_view(finding, harnesses.harness_of(report, finding), sources, anchor=f"finding-{number}")
        for number, finding in enumerate(ordered, start=1)
    ]
    pictures = _Pictures(_MOST_CELLS, _MOST_BOXES, _found(findings, report))
    targets = [
        _target(f"target-{number}", target, columns, sources, pictures)
        for number, target in enumerate(report.targets, start=1)
    ]
    counts = Counter(target.harness.grade for target in report.targets if target.harness is not None and target.checks)
    return ReportView(
        report=report,
        environment=tuple(environment_facts(report.tool.environment)),
        files=tuple((path, tuple(group)) for path, group in groupby(findings, key=lambda each: each.info.path)),
        columns=columns,
        # Those that fail come first, each group in the order of path and line.
        targets=tuple(sorted(targets, key=lambda target: not target.failing)),
        grades=tuple((grade, means, counts[grade]) for grade, means in harnesses.GRADES.items()),
        not_run=harnesses.not_run(report),
        not_eligible=harnesses.not_eligible(report),
        examples=harnesses.examples(report),
    )


def _order(finding: FindingInfo) -> tuple[str, int, int, int]:
    return finding.path, finding.cell or 0, finding.start_line, finding.start_column


def finding_view(
    finding: FindingInfo, harness: Harness | None, sources: Sources, *, anchor: str = "finding", context: int = 1
) -> FindingView:
    """One finding, with `context` lines quoted around its place. `harness` is what its verdict rests on."""
    return FindingView(
        info=finding,
        anchor=anchor,
        lines=marked_lines(sources, shown_region(sources, finding), context=context),
        evidence=_rows({key: value for key, value in finding.evidence.items() if key not in _TOLD_OTHERWISE}),
        grade=harnesses.grade_sentence(harness) if harness is not None else "",
    )


def target_view(target: TargetInfo, sources: Sources, found: Sequence[Found]) -> TargetView:
    """One target with all its pictures; `found` is what its graph is coloured by."""
    columns = tuple(dict.fromkeys(check.check for check in target.checks))
    return _target("target", target, columns, sources, _Pictures(_MOST_CELLS, _MOST_BOXES, found))


class _Pictures:
    """Draws as long as there is room on the page. `found` is what graphs are coloured by."""

    def __init__(self, cells: int, boxes: int, found: Sequence[Found]) -> None:
        self._cells = cells
        self._boxes = boxes
        self._found = found

    def draw(self, evidence: GradientEvidence, anchor: str) -> str:
        """The Jacobians as SVG; empty if there are none, or no room for them."""
        if evidence.jacobians is None or evidence.jacobians.cells > self._cells:
            return ""
        self._cells -= evidence.jacobians.cells
        return jacobian_picture(evidence.jacobians, identity=f"{anchor}-jacobians")

    def portray(self, evidence: Mapping[str, object], anchor: str) -> Portrait | None:
        """The graph of a call with what was found on it, drawn if there is room; None if the evidence has none."""
        graph, costs = read_portrait(evidence)
        if graph is None:
            return None
        room = len(graph.nodes) <= self._boxes
        self._boxes -= len(graph.nodes) if room else 0
        return draw(graph, costs, self._found, anchor, with_picture=room)


def _found(findings: Sequence[FindingView], report: Report) -> list[Found]:
    """The findings and the failing checks, with the anchors that `view` gives them."""
    found = [Found(finding_mark(finding.info), finding.anchor) for finding in findings]
    for number, target in enumerate(report.targets, start=1):
        for position, check in enumerate(target.checks, start=1):
            mark = failure_mark(target, check)
            if mark is not None:
                found.append(Found(mark, f"target-{number}-check-{position}"))
    return found


def _target(
    anchor: str, target: TargetInfo, columns: Sequence[str], sources: Sources, pictures: _Pictures
) -> TargetView:
    checks = tuple(
        _check(f"{anchor}-check-{position}", target, check, sources, pictures)
        for position, check in enumerate(target.checks, start=1)
    )
    return TargetView(
        info=target,
        anchor=anchor,
        # What somebody has to look at comes first, what was not even asked last.
        checks=tuple(sorted(checks, key=lambda check: _GRAVITY.index(check.info.verdict))),
        cells=tuple(tuple(check for check in checks if check.info.check == column) for column in columns),
        failing=any(check.verdict == "fail" for check in target.checks),
        grade=harnesses.grade_sentence(target.harness) if target.harness is not None else "",
        options=harnesses.options(target.harness) if target.harness is not None else "",
    )


def _check(anchor: str, target: TargetInfo, check: CheckInfo, sources: Sources, pictures: _Pictures) -> CheckView:
    told = gradient_evidence(check.evidence)
    units = " ".join(unit_sentences(check))
    evidence = check.evidence | {UNITS: units} if units else check.evidence
    portrait = pictures.portray(check.evidence, anchor)
    shown = told.shown_keys() | (KEYS if portrait is not None else frozenset())
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    return CheckView(
        info=check,
        anchor=anchor,
        path=path,
        line=line,
        lines=marked_lines(sources, line_region(sources, path, line)) if check.verdict == "fail" else (),
        numbers=_rows(check.diagnosis.numbers) if check.diagnosis else (),
        facts=told.facts(),
        picture=pictures.draw(told, anchor),
        portrait=portrait,
        evidence=_rows({key: value for key, value in evidence.items() if key not in shown}),
    )


def marked_lines(sources: Sources, region: Region, *, context: int = 1, most: int = 8) -> tuple[MarkedLine, ...]:
    """The lines around a place, at most `most` of the place itself, cut at what is to be marked."""
    marked = []
    for line in excerpt(sources, region, context=context, most=most):
        begin, end = line.mark or (len(line.text), len(line.text))
        marked.append(MarkedLine(line.number, line.text[:begin], line.text[begin:end], line.text[end:]))
    return tuple(marked)


def _rows(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Evidence as pairs of texts: numbers as they are, lists of words and numbers as such, anything nested as JSON."""
    return tuple((key.replace("_", " "), _said(value)) for key, value in values.items())


def _said(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    return json.dumps(value, ensure_ascii=False)
