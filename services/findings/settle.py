"""Gives each static finding the verdict that the checks support, and no more than that.

A failing check confirms a finding only where it can be told that it failed because of it: at the finding's place, or
somewhere unnamed in the target around it. A passing check refutes a finding only if the check searches for the very
hazard; otherwise the finding stays `not_exercised`, with the reason. Pure: no clock, no storage, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analyzer.findings import Finding
from services.checks.plan import CHECKS
from services.findings.aims import AIMS
from services.findings.model import SettledFinding, Settlement, TargetResult
from services.reports.document import CheckInfo, TriageState

_T = TypeVar("_T")

# A check names the line it could attribute a fault to by the stack or by the source of the function; statements that
# span lines make that off by one in either direction.
_LINE_SLACK = 1


@dataclass(frozen=True, slots=True)
class _Run:
    target: TargetResult
    check: CheckInfo


class _Index:
    """Findings and targets by path: a large repository has thousands of both."""

    def __init__(self, findings: Sequence[Finding], targets: Sequence[TargetResult]) -> None:
        self.findings: dict[str, list[Finding]] = {}
        self.targets: dict[str, list[TargetResult]] = {}
        self.failures: dict[str, list[_Run]] = {}
        for finding in findings:
            self.findings.setdefault(finding.region.path, []).append(finding)
        for target in targets:
            self.targets.setdefault(target.declaration.path, []).append(target)
            for check in target.checks:
                if check.verdict == "fail" and check.path is not None:
                    self.failures.setdefault(check.path, []).append(_Run(target, check))

    def enclosing(self, finding: Finding) -> tuple[TargetResult, ...]:
        """The targets whose source holds the finding, the innermost first."""
        around = [
            target
            for target in self.targets.get(finding.region.path, ())
            if target.declaration.line <= finding.region.start_line <= target.declaration.end_line
        ]
        return tuple(sorted(around, key=lambda target: target.declaration.end_line - target.declaration.line))

    def belongs_to_another(self, run: _Run, finding: Finding) -> bool:
        """Whether the check names a place that lies outside its target, or that another finding of it holds."""
        check, declaration = run.check, run.target.declaration
        if check.path is None or check.line is None or (check.path, check.line) == (declaration.path, declaration.line):
            return False  # no place, or that of the class itself, which stands for no better one
        if check.path != declaration.path or not declaration.line <= check.line <= declaration.end_line:
            return True
        return any(
            other is not finding and _points_at(check, other) and _can_come_from(check, other)
            for other in self.findings.get(check.path, ())
        )

    def rivals(self, run: _Run, finding: Finding) -> int:
        """How many other findings of the same target could have led to this failure."""
        declaration = run.target.declaration
        return sum(
            other is not finding
            and declaration.line <= other.region.start_line <= declaration.end_line
            and _can_come_from(run.check, other)
            for other in self.findings.get(declaration.path, ())
        )


def settle(
    findings: Iterable[Finding],
    targets: Sequence[TargetResult],
    *,
    known: frozenset[str] = frozenset(),
    triage: Mapping[str, TriageState] | None = None,
) -> tuple[SettledFinding, ...]:
    """Each finding with its verdict, in the order given.

    `known` holds the fingerprints that the base analysis has too; `triage` what people decided, by fingerprint.
    """
    findings = tuple(findings)
    index = _Index(findings, targets)
    states = triage or {}
    return tuple(
        SettledFinding(
            finding=finding,
            settlement=_settle_one(finding, index),
            is_new=finding.fingerprint not in known,
            triage=states.get(finding.fingerprint, "open"),
        )
        for finding in findings
    )


def _settle_one(finding: Finding, index: _Index) -> Settlement:
    if not finding.settled_by:
        return Settlement("static_only", "Reading decides this: there is nothing to execute.")
    for run in index.failures.get(finding.region.path, ()):
        if _points_at(run.check, finding) and _can_come_from(run.check, finding):
            return _confirmed(run, f"at line {run.check.line}")
    around = index.enclosing(finding)
    if not around:
        return Settlement(
            "not_exercised",
            f"No target encloses {finding.symbol or finding.region.path}, so no check reached this line by itself.",
        )
    runs = tuple(
        _Run(target, check) for target in around for check in target.checks if check.check in finding.settled_by
    )
    return _by_failure(finding, around, index) or _by_passing(finding, runs) or _not_exercised(finding, around, runs)


def _by_failure(finding: Finding, around: Sequence[TargetResult], index: _Index) -> Settlement | None:
    failures = [_Run(target, check) for target in around for check in target.checks if check.verdict == "fail"]
    explained = [run for run in failures if _can_come_from(run.check, finding)]
    for run in explained:
        if not index.belongs_to_another(run, finding) and not index.rivals(run, finding):
            return _confirmed(run, f"in {run.target.declaration.qualname}, around this line")
    named = [run for run in failures if run.check.check in finding.settled_by]
    if not (explained or named):
        return None
    run = (explained or named)[0]
    others = index.rivals(run, finding)
    if not explained:
        because = f"for another reason ({run.check.diagnosis.cause.replace('_', ' ') if run.check.diagnosis else '?'})"
    elif index.belongs_to_another(run, finding):
        because = f"for another place ({run.check.path}, line {run.check.line})"
    else:
        because = f"{others} other finding{'s' if others > 1 else ''} there can explain it as well"
    return Settlement(
        "not_exercised",
        f"{run.check.check} failed in {run.target.declaration.name}, but {because}: mend that first, then this one can "
        "be told apart.",
        _evidence(run),
    )


def _can_come_from(check: CheckInfo, finding: Finding) -> bool:
    """Whether what the rule suspects could lead to this failure of this check."""
    aim = AIMS.get(finding.rule)
    if aim is None:
        return check.check in finding.settled_by
    known = check.check in finding.settled_by or check.check in aim.also
    return known and check.diagnosis is not None and check.diagnosis.cause in aim.causes


def _by_passing(finding: Finding, runs: Sequence[_Run]) -> Settlement | None:
    run = _first(run for run in runs if run.check.verdict == "pass" and _aims(run, finding))
    if run is None:
        return None
    return Settlement(
        "not_reproduced",
        f"{run.check.check} ran {run.target.declaration.name}, which is what this rule doubts, and it held: "
        f"{_sentence(run.check.summary)}",
        _evidence(run),
    )


def _confirmed(run: _Run, where: str) -> Settlement:
    said = run.check.diagnosis.text if run.check.diagnosis else run.check.summary
    return Settlement(
        "confirmed",
        f"{run.check.check} on {run.target.declaration.name} ({run.check.device}) failed {where}: {_sentence(said)}",
        _evidence(run),
    )


def _not_exercised(finding: Finding, around: Sequence[TargetResult], runs: Sequence[_Run]) -> Settlement:
    wanted = " or ".join(finding.settled_by)
    for verdict, words in (
        ("error", "could not run"),
        ("inconclusive", "was inconclusive"),
        ("skipped", "was skipped"),
    ):
        run = _first(run for run in runs if run.check.verdict == verdict)
        if run is not None:
            return Settlement(
                "not_exercised",
                f"{run.check.check} on {run.target.declaration.name} {words}: {_sentence(run.check.summary)}",
                _evidence(run),
            )
    passed = _first(run for run in runs if run.check.verdict == "pass")
    if passed is not None:
        return Settlement(
            "not_exercised",
            f"{passed.check.check} passed on {passed.target.declaration.name}, but on ordinary inputs in an ordinary "
            "call: it does not search for what this rule warns of.",
            _evidence(passed),
        )
    stopped = _first(target for target in around if target.not_run_reason)
    if stopped is not None:
        detail = f": {_sentence(stopped.not_run_detail)}" if stopped.not_run_detail else "."
        return Settlement(
            "not_exercised",
            f"{stopped.declaration.name} could not be run ({stopped.not_run_reason}){detail}",
            {"target": stopped.declaration.name},
        )
    ran = sorted({check.check for target in around for check in target.checks})
    did = f"only {', '.join(ran)} ran" if ran else "no check ran"
    if not any(check in CHECKS for check in finding.settled_by):
        return Settlement("not_exercised", f"only {wanted} would settle this, a check that this version does not have.")
    return Settlement("not_exercised", f"{wanted} would settle this; {did} on {around[0].declaration.name}.")


def _points_at(check: CheckInfo, finding: Finding) -> bool:
    region = finding.region
    return (
        check.path == region.path
        and check.line is not None
        and region.start_line - _LINE_SLACK <= check.line <= region.end_line + _LINE_SLACK
    )


def _aims(run: _Run, finding: Finding) -> bool:
    """Whether the check could not have passed with the fault that the rule suspects."""
    aim = AIMS.get(finding.rule)
    return aim is not None and run.check.check in aim.refuted_by and run.target.declaration.kind is aim.kind


def _evidence(run: _Run) -> dict[str, object]:
    evidence: dict[str, object] = {
        "target": run.target.declaration.name,
        "check": run.check.check,
        "device": run.check.device,
        "verdict": run.check.verdict,
    }
    if run.check.diagnosis is not None:
        evidence["cause"] = run.check.diagnosis.cause
        evidence["numbers"] = dict(run.check.diagnosis.numbers)
    return evidence


def _sentence(text: str) -> str:
    text = text.strip() or "no reason given"
    return text if text[-1] in ".!?…" else text + "."


def _first(values: Iterable[_T]) -> _T | None:
    return next(iter(values), None)
