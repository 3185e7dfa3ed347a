"""Failures of checks that no rule foresaw, as findings of their own; and one entry for one fault.

A failing check belongs to the finding that it confirms, and to one of the same kind at its place. What is left is
grouped by place and cause, over all targets and devices that failed there, and becomes a finding whose rule is the
check's name. Its fingerprint is made of path, enclosing definition, the text of the line, check and cause: none of them
moves with lines. The text comes out of the sandbox: a lie there can only be about the liar's own code. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.findings import Confidence, Finding, Region, Severity
from services.checks.plan import CHECKS
from services.findings.aims import AIMS
from services.findings.model import SettledFinding, Settlement, TargetResult
from services.reports.document import CheckInfo, TriageState
from services.reports.gradient_evidence import gradient_evidence
from services.reports.untrusted import one_line, shorten

_LINE_SLACK: Final = 1
_HEX_DIGITS: Final = 40
_LONGEST_TEXT: Final = 300
_MOST_TARGETS: Final = 20
_MOST_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class _Fault:
    """One thing that a failing check found; `source` is the text of its line, `symbol` what encloses it."""

    target: TargetResult
    check: CheckInfo
    path: str
    line: int
    symbol: str
    source: str
    cause: str
    message: str

    @property
    def key(self) -> tuple[str, ...]:
        return self.path, self.symbol, self.source, self.check.check, self.cause


def is_failure(finding: Finding) -> bool:
    """Whether the finding comes from a check alone: no rule said it."""
    return finding.rule in CHECKS


def with_failures(
    settled: Sequence[SettledFinding],
    targets: Sequence[TargetResult],
    *,
    known: frozenset[str] = frozenset(),
    triage: Mapping[str, TriageState] | None = None,
) -> tuple[SettledFinding, ...]:
    """The settled findings, each with the failing checks that are its story, and then the failures without one."""
    states = triage or {}
    stories: dict[int, list[_Fault]] = {}
    alone: dict[tuple[str, ...], list[_Fault]] = {}
    confirmed = [(number, item) for number, item in enumerate(settled) if item.settlement.verdict == "confirmed"]
    for fault in _faults(targets):
        owners = [number for number, item in confirmed if _tells(item, fault)]
        for number in owners:
            stories.setdefault(number, []).append(fault)
        if not owners:
            alone.setdefault(fault.key, []).append(fault)
    told = [
        replace(item, settlement=_with_checks(item.settlement, stories[number])) if number in stories else item
        for number, item in enumerate(settled)
    ]
    return (*told, *(_finding(faults, known, states) for faults in alone.values()))


def _faults(targets: Sequence[TargetResult]) -> Iterator[_Fault]:
    for target in targets:
        for check in target.checks:
            if check.verdict == "fail":
                yield _main(target, check)
                yield from _others(target, check)


def _main(target: TargetResult, check: CheckInfo) -> _Fault:
    place = check.path is not None and check.line is not None
    cause = check.diagnosis.cause if check.diagnosis else "failed"
    said = check.diagnosis.text if check.diagnosis else check.summary
    symbol, source = _source(check.evidence.get("source"), target)
    return _Fault(
        target,
        check,
        check.path if place and check.path else target.declaration.path,
        check.line if place and check.line else target.declaration.line,
        symbol,
        source,
        cause,
        said,
    )


def _others(target: TargetResult, check: CheckInfo) -> Iterator[_Fault]:
    """The further births of values that are not finite, each at its own line."""
    also = check.evidence.get("also")
    for record in also[:_MOST_FAULTS] if isinstance(also, list) else ():
        birth = record.get("birth") if isinstance(record, Mapping) else None
        if not isinstance(birth, Mapping):
            continue
        path, line = birth.get("path"), birth.get("line")
        if not isinstance(path, str) or not isinstance(line, int) or isinstance(line, bool) or line < 1:
            continue
        if (path, line) == (check.path, check.line):
            continue
        symbol, source = _source(record.get("source"), target)
        told = gradient_evidence(record)
        said = f"a value or gradient that is not finite is born here: {told.birth or 'no more is known'}"
        if told.given:
            said += f"; input: {told.given}"
        cause = "nan_gradient" if birth.get("phase") == "backward" else "nan_output"
        yield _Fault(target, check, path, line, symbol, source, cause, said)


def _source(value: object, target: TargetResult) -> tuple[str, str]:
    """What encloses the line, and the text of the line, as the probe read them."""
    record = value if isinstance(value, Mapping) else {}
    symbol, text = record.get("symbol"), record.get("text")
    declaration = target.declaration
    own = symbol if isinstance(symbol, str) and symbol else declaration.qualname
    return (
        shorten(one_line(f"{declaration.module}.{own}"), _LONGEST_TEXT),
        shorten(one_line(text), _LONGEST_TEXT) if isinstance(text, str) else "",
    )


def _tells(item: SettledFinding, fault: _Fault) -> bool:
    """Whether the finding is the story of the failure: at its place, or confirmed by this very run without another."""
    region, evidence = item.finding.region, item.settlement.evidence
    near = region.path == fault.path and (
        region.start_line - _LINE_SLACK <= fault.line <= region.end_line + _LINE_SLACK
    )
    same = (evidence.get("target"), evidence.get("check")) == (fault.target.declaration.name, fault.check.check)
    is_main = fault.check.path is None or (fault.path, fault.line) == (fault.check.path, fault.check.line)
    # A check that was aimed at several findings names the place of one: it is the story of each that it confirmed.
    return near or (same and is_main) or _explains(item, fault)


def _explains(item: SettledFinding, fault: _Fault) -> bool:
    """Whether the finding, confirmed inside the target, is of the kind that makes the target fail like this.

    gradcheck sees a whole target and can often name no better line than its first. `nan_gradient` names where each
    value was born: there two places are two faults.
    """
    region, declaration, aim = item.finding.region, fault.target.declaration, AIMS.get(item.finding.rule)
    inside = region.path == declaration.path and declaration.line <= region.start_line <= declaration.end_line
    return inside and aim is not None and fault.cause in aim.causes and fault.check.check != "nan_gradient"


def _with_checks(settlement: Settlement, faults: Iterable[_Fault]) -> Settlement:
    return replace(settlement, evidence={**settlement.evidence, "checks": _told(faults)})


def _told(faults: Iterable[_Fault]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = [
        {"target": fault.target.declaration.name, "check": fault.check.check, "device": fault.check.device}
        for fault in faults
    ]
    return [record for number, record in enumerate(records) if record not in records[:number]][:_MOST_TARGETS]


def _finding(faults: Sequence[_Fault], known: frozenset[str], triage: Mapping[str, TriageState]) -> SettledFinding:
    first = faults[0]
    material = "\0".join(first.key)
    fingerprint = hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX_DIGITS]
    names = list(dict.fromkeys(fault.target.declaration.name for fault in faults))
    others = f" (and {len(names) - 1} more targets)" if len(names) > 1 else ""
    told = gradient_evidence(first.check.evidence)
    evidence: dict[str, object] = {
        "target": names[0],
        "targets": names[:_MOST_TARGETS],
        "check": first.check.check,
        "device": first.check.device,
        "verdict": first.check.verdict,
        "cause": first.cause,
        "checks": _told(faults),
        **{key: text for key, text in (("input", told.given), ("birth", told.birth)) if text is not None},
    }
    return SettledFinding(
        finding=Finding(
            fingerprint=fingerprint,
            rule=first.check.check,
            name=first.cause.replace("_", "-"),
            severity=Severity.ERROR,
            confidence=Confidence.HIGH,
            region=Region(first.path, first.line, 1, first.line, 1),
            symbol=first.symbol,
            message=first.message,
            settled_by=(first.check.check,),
        ),
        settlement=Settlement(
            "confirmed", f"{first.check.check} on {names[0]} ({first.check.device}) fails here{others}.", evidence
        ),
        is_new=fingerprint not in known,
        triage=triage.get(fingerprint, "open"),
    )
