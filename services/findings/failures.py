"""Failures of checks that no rule foresaw, as findings of their own; and one entry for one fault.

A failing check belongs to the finding that it confirms, and to one of the same kind at its place. What is left is
grouped by place and cause, over all targets, devices and checks that failed there for one reason, and becomes a finding
whose rule is the name of the first check. Its fingerprint is made of path, enclosing definition, the text of the line,
check and cause: none of them moves with lines. The text comes out of the sandbox: a lie there can only be about the
liar's own code. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from analyzer.findings import Confidence, Finding, Region, Severity
from services.checks.plan import CHECKS
from services.findings.aims import AIMS, PRECISE
from services.findings.faults import Fault, faults
from services.findings.kindred import same_fault
from services.findings.model import SettledFinding, Settlement, TargetResult
from services.reports.document import TriageState
from services.reports.gradient_evidence import gradient_evidence

_LINE_SLACK: Final = 1
_HEX_DIGITS: Final = 40
_MOST_TARGETS: Final = 20


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
    stories: dict[int, list[Fault]] = {}
    alone: dict[tuple[str, ...], list[Fault]] = {}
    confirmed = [(number, item) for number, item in enumerate(settled) if item.settlement.verdict == "confirmed"]
    for fault in faults(targets):
        owners = [number for number, item in confirmed if _tells(item, fault)]
        for number in owners:
            stories.setdefault(number, []).append(fault)
        if not owners:
            alone.setdefault(fault.key, []).append(fault)
    told = [
        replace(item, settlement=_with_checks(item.settlement, stories[number])) if number in stories else item
        for number, item in enumerate(settled)
    ]
    return (*told, *(_finding(group, known, states) for group in _one_fault_each(list(alone.values()))))


def _tells(item: SettledFinding, fault: Fault) -> bool:
    """Whether the finding is the story of the failure: at its place, or confirmed by this very run without another.

    To a check that knows the line of its fault, another line is another fault.
    """
    region, evidence = item.finding.region, item.settlement.evidence
    near = region.path == fault.path and (
        region.start_line - _LINE_SLACK <= fault.line <= region.end_line + _LINE_SLACK
    )
    if near:
        return True
    if fault.check.check in PRECISE and fault.is_located:
        return False
    same = (evidence.get("target"), evidence.get("check")) == (fault.target.declaration.name, fault.check.check)
    # A check that was aimed at several findings names the place of one: it is the story of each that it confirmed.
    return (same and fault.is_main) or _explains(item, fault)


def _explains(item: SettledFinding, fault: Fault) -> bool:
    """Whether the finding, confirmed inside the target, is of the kind that makes the target fail like this.

    gradcheck sees a whole target and can often name no better line than its first. `nan_gradient` names where each
    value was born: there two places are two faults.
    """
    region, declaration, aim = item.finding.region, fault.target.declaration, AIMS.get(item.finding.rule)
    inside = region.path == declaration.path and declaration.line <= region.start_line <= declaration.end_line
    return inside and aim is not None and fault.cause in aim.causes and fault.check.check != "nan_gradient"


def _one_fault_each(groups: Sequence[list[Fault]]) -> list[list[Fault]]:
    """The groups, with those together that are one fault to different checks: told by the check that comes first."""
    found: dict[str, list[list[Fault]]] = {}
    for group in groups:
        before = found.setdefault(group[0].path, [])
        same = next((one for one in before if _is_one_fault(one, group[0])), None)
        if same is None:
            before.append(group)
        else:
            same.extend(group)
    firsts = {id(group) for of_path in found.values() for group in of_path}
    return [group for group in groups if id(group) in firsts]


def _is_one_fault(group: Sequence[Fault], other: Fault) -> bool:
    """Whether a fault that another check found is the one of the group: of its kind, at its line or next to it.

    A check that knows no line of its own is the same story as one that does, in one target.
    """
    if any(fault.check.check == other.check.check for fault in group):
        return False  # to one check, two places or causes are two faults
    first = group[0]
    near = abs(first.line - other.line) <= _LINE_SLACK
    unplaced = first.target is other.target and not (first.is_located and other.is_located)
    return (near or unplaced) and same_fault(first.cause, other.cause)


def _with_checks(settlement: Settlement, told: Iterable[Fault]) -> Settlement:
    return replace(settlement, evidence={**settlement.evidence, "checks": _told(told)})


def _told(told: Iterable[Fault]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = [
        {"target": fault.target.declaration.name, "check": fault.check.check, "device": fault.check.device}
        for fault in told
    ]
    return [record for number, record in enumerate(records) if record not in records[:number]][:_MOST_TARGETS]


def _finding(group: Sequence[Fault], known: frozenset[str], triage: Mapping[str, TriageState]) -> SettledFinding:
    first = group[0]
    material = "\0".join(first.key)
    fingerprint = hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX_DIGITS]
    names = list(dict.fromkeys(fault.target.declaration.name for fault in group))
    others = f" (and {len(names) - 1} more targets)" if len(names) > 1 else ""
    told = gradient_evidence(first.check.evidence)
    evidence: dict[str, object] = {
        "target": names[0],
        "targets": names[:_MOST_TARGETS],
        "check": first.check.check,
        "device": first.check.device,
        "verdict": first.check.verdict,
        "cause": first.cause,
        "checks": _told(group),
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
