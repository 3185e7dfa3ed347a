"""What the static findings inside a target suspect, as data for the checks that run it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from analyzer.findings import Finding, TargetDeclaration

Hypotheses = tuple[dict[str, object], ...]


class Suspicions:
    """The findings that a check can settle, by file and line: a submission may have thousands of them and of targets.

    Asking all findings for each target took 5 s for 10,000 of both, in the transaction that stores them.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._by_file: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.settled_by:
                self._by_file.setdefault(finding.region.path, []).append(finding)
        for listed in self._by_file.values():
            listed.sort(key=_line)

    def within(self, target: TargetDeclaration) -> Hypotheses:
        """One record for each finding that lies within the target, in the order of their lines."""
        listed = self._by_file.get(target.path, [])
        first = bisect_left(listed, target.line, key=_line)
        end = bisect_right(listed, target.end_line, key=_line)
        return tuple(
            {
                "rule": finding.rule,
                "fingerprint": finding.fingerprint,
                "path": finding.region.path,
                "line": finding.region.start_line,
                "symbol": finding.symbol,
                **finding.hypothesis,
            }
            for finding in listed[first:end]
        )


def _line(finding: Finding) -> int:
    return finding.region.start_line
