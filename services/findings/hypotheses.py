"""What the static findings suspect of a target, as data for the checks that run it. Pure.

A finding goes to the targets that enclose it, and to those that may come to it by what they call. Where neither is
known, the nearest targets of its file are told of it; the check says whether it came there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from analyzer.findings import Edit, Finding, TargetDeclaration
from services.findings.spans import Spans

Hypotheses = tuple[dict[str, object], ...]
# By name of a target, the places (path, first line, last line) outside of it that running it may come to.
Reaches = Mapping[str, tuple[tuple[str, int, int], ...]]

# Few files have more targets, and one that has thousands must not make thousands of copies of each of its findings.
_MOST_CALLERS: Final = 8
# A check answers each with a line of 150 bytes, in evidence that the probe keeps below 64 kB or leaves out.
_MOST_OF_A_TARGET: Final = 200


class Suspicions:
    """The findings that a check can settle, by the targets that are to be run with them in mind."""

    def __init__(
        self,
        findings: Iterable[Finding],
        targets: Iterable[TargetDeclaration],
        reaches: Reaches | None = None,
    ) -> None:
        by_file: dict[str, list[TargetDeclaration]] = {}
        calling: dict[str, list[tuple[int, int, TargetDeclaration]]] = {}
        for target in targets:
            by_file.setdefault(target.path, []).append(target)
            for path, first, last in (reaches or {}).get(target.name, ()):
                calling.setdefault(path, []).append((first, last, target))
        files = {path: _File(by_file.get(path, ()), calling.get(path, ())) for path in {*by_file, *calling}}
        self._found: dict[TargetDeclaration, list[Finding]] = {}
        for finding in sorted(findings, key=_line):
            file = files.get(finding.region.path)
            if file is not None and finding.settled_by:
                for target in file.targets_for(_line(finding)):
                    self._found.setdefault(target, []).append(finding)

    def of(self, target: TargetDeclaration) -> Hypotheses:
        """One record for each of the first findings that concern the target, in the order of their lines."""
        return tuple(
            {
                "rule": finding.rule,
                "fingerprint": finding.fingerprint,
                "path": finding.region.path,
                "symbol": finding.symbol,
                "severity": finding.severity.value,
                **finding.hypothesis,
                # A rule's own words never stand in the place of these: the probe looks there and nowhere else.
                "line": finding.region.start_line,
                "end_line": finding.region.end_line,
                "start_column": finding.region.start_column,
                "end_column": finding.region.end_column,
                "fix": [_edit(finding, edit) for edit in finding.fix.edits],
            }
            for finding in self._found.get(target, [])[:_MOST_OF_A_TARGET]
        )


class _File:
    def __init__(
        self, targets: Sequence[TargetDeclaration], calling: Sequence[tuple[int, int, TargetDeclaration]]
    ) -> None:
        self._targets = sorted(targets, key=lambda target: target.line)
        self._lines = [target.line for target in self._targets]
        self._spans = Spans((target.line, target.end_line, target) for target in targets)
        self._calling = Spans(calling)

    def targets_for(self, line: int) -> Sequence[TargetDeclaration]:
        """The targets around the line and those that may come to it; if there are none, those that begin nearest."""
        around = self._spans.at(line)
        callers = [target for target in dict.fromkeys(self._calling.at(line)) if target not in around]
        # The smallest first: of two targets that come to the line, it says more of the place and less of the rest.
        callers.sort(key=lambda target: target.end_line - target.line)
        return [*around, *callers[:_MOST_CALLERS]] or self._nearest(line)

    def _nearest(self, line: int) -> list[TargetDeclaration]:
        middle = bisect_left(self._lines, line)
        window = self._targets[max(0, middle - _MOST_CALLERS) : middle + _MOST_CALLERS]
        return sorted(window, key=lambda target: abs(target.line - line))[:_MOST_CALLERS]


def _edit(finding: Finding, edit: Edit) -> dict[str, object]:
    """One change that would mend the finding, so that what is mended can be run as well."""
    region = edit.region
    return {
        "path": region.path or finding.region.path,
        "start_line": region.start_line,
        "start_column": region.start_column,
        "end_line": region.end_line,
        "end_column": region.end_column,
        "replacement": edit.replacement,
    }


def _line(finding: Finding) -> int:
    return finding.region.start_line
