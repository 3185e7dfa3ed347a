"""What the page of one finding and the page of one target show, prepared.

`services.reports.view` prepares a whole report in the same way; here the pieces are larger: more lines around a place,
each place on the way to it, the fix as a diff, every picture. It decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.reports.document import CheckInfo, FindingInfo, TargetInfo
from services.reports.fix_diff import fix_diff
from services.reports.measured_errors import MeasuredError, measured_errors
from services.reports.portraits import Found, Portrait, failure_mark, finding_mark
from services.reports.sources import Sources, line_region, shown_region
from services.reports.unit_histograms import UnitHistogram, unit_histograms
from services.reports.view import (
    CheckView,
    FindingView,
    MarkedLine,
    TargetView,
    finding_view,
    marked_lines,
    target_view,
)

_CONTEXT: Final = 5
_MOST_STEPS: Final = 40
_PORTRAIT: Final = "portrait"
_UNSAFE_IN_IDS: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Step:
    """A place on the way to a finding, quoted."""

    place: str
    message: str
    lines: tuple[MarkedLine, ...]


@dataclass(frozen=True, slots=True)
class Telling:
    """A check that tells of a finding, with the name of its target."""

    target: str
    check: CheckView


@dataclass(frozen=True, slots=True)
class FindingDetail:
    """A finding with everything that speaks of it.

    `decisive` is the check that its verdict rests on, `others` further ones; `portrait` the graph of a call of the
    target `portrait_of`, with this and other findings on it.
    """

    view: FindingView
    steps: tuple[Step, ...]
    diff: tuple[str, ...]
    decisive: Telling | None
    others: tuple[Telling, ...]
    errors: tuple[MeasuredError, ...]
    units: tuple[UnitHistogram, ...]
    portrait: Portrait | None
    portrait_of: str

    @property
    def repro(self) -> str | None:
        """The script that shows it."""
        return next((item.check.info.repro for item in self.telling if item.check.info.repro), None)

    @property
    def measured_by_telling(self) -> bool:
        """Whether the errors by type and device are what the finding is about."""
        measuring = {row.check for row in self.errors} | {chart.check for chart in self.units}
        return any(item.check.info.check in measuring for item in self.telling)

    @property
    def telling(self) -> tuple[Telling, ...]:
        """All checks that tell of it, the decisive one first."""
        return ((self.decisive,) if self.decisive is not None else ()) + self.others


@dataclass(frozen=True, slots=True)
class TargetDetail:
    """A target with everything that was found out about it."""

    view: TargetView
    errors: tuple[MeasuredError, ...]
    units: tuple[UnitHistogram, ...]
    lines: tuple[MarkedLine, ...]


def finding_detail(
    finding: FindingInfo, targets: Sequence[TargetInfo], others: Sequence[FindingInfo], sources: Sources
) -> FindingDetail:
    """A finding with the targets that its evidence names, and the other findings that may lie on their graphs."""
    told = _told(finding)
    named = finding.evidence.get("target")
    harness = next((target.harness for target in targets if target.name == named), None)
    marks = _marks([finding, *(other for other in others if other.fingerprint != finding.fingerprint)], targets)
    telling: list[Telling] = []
    portrait, portrait_of = None, ""
    for target in targets:
        for check in target_view(target, sources, marks).checks:
            if portrait is None and check.portrait is not None:
                portrait, portrait_of = check.portrait, target.name
            if (target.name, check.info.check, check.info.device) in told and check.info.check != _PORTRAIT:
                telling.append(Telling(target.name, check))
    checks = [check for target in targets for check in target.checks]
    decisive = next((item for item in telling if _decided(finding.evidence, item)), telling[0] if telling else None)
    return FindingDetail(
        view=finding_view(finding, harness, sources, context=_CONTEXT),
        steps=tuple(
            Step(
                related.place, related.message, marked_lines(sources, shown_region(sources, related), context=0, most=3)
            )
            for related in finding.related[:_MOST_STEPS]
        ),
        diff=fix_diff(finding, sources),
        decisive=decisive,
        others=tuple(item for item in telling if item is not decisive),
        errors=measured_errors(checks),
        units=unit_histograms(checks),
        portrait=portrait,
        portrait_of=portrait_of,
    )


def target_detail(target: TargetInfo, findings: Sequence[FindingInfo], sources: Sources) -> TargetDetail:
    """A target with the findings that may lie on its graph."""
    return TargetDetail(
        view=target_view(target, sources, _marks(findings, [target])),
        errors=measured_errors(target.checks),
        units=unit_histograms(target.checks),
        lines=marked_lines(sources, line_region(sources, target.path, target.line), context=3),
    )


def named_targets(finding: FindingInfo, *, most: int = 3) -> tuple[str, ...]:
    """The targets that the evidence of a finding names, the one that its verdict rests on first."""
    names = [finding.evidence.get("target"), *(record.get("target") for record in _records(finding))]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))[:most]


def check_anchor(check: CheckInfo) -> str:
    """The id of a check on the page of its target: `gradcheck-cpu`."""
    return _UNSAFE_IN_IDS.sub("-", f"{check.check}-{check.device}")


# The anchor of a mark is an address relative to that of the analysis, or a place on the same page.
def _marks(findings: Sequence[FindingInfo], targets: Sequence[TargetInfo]) -> list[Found]:
    marks = [Found(finding_mark(finding), f"findings/{finding.fingerprint}") for finding in findings]
    for target in targets:
        for check in target.checks:
            mark = failure_mark(target, check)
            if mark is not None:
                marks.append(Found(mark, f"#{check_anchor(check)}"))
    return marks


def _told(finding: FindingInfo) -> set[tuple[str, str, str]]:
    return {
        (str(record.get("target")), str(record.get("check")), str(record.get("device"))) for record in _records(finding)
    }


def _records(finding: FindingInfo) -> list[Mapping[str, object]]:
    records = finding.evidence.get("checks")
    own = {key: finding.evidence.get(key) for key in ("target", "check", "device")}
    listed = [record for record in records if isinstance(record, Mapping)] if isinstance(records, list) else []
    return [own, *listed] if isinstance(own["check"], str) else listed


def _decided(evidence: Mapping[str, object], item: Telling) -> bool:
    return (evidence.get("target"), evidence.get("check"), evidence.get("device")) == (
        item.target,
        item.check.info.check,
        item.check.info.device,
    )
