"""Decides whether an analysis passes, condition by condition, each with the sentence a person needs.

Only new, open findings whose rule may block count; a finding that was executed and held (`not_reproduced`) does not.
Notes never fail a gate, nor do checks that did not come to a verdict: those are named, so that nobody takes silence
for a pass. Where there is a base, only checks that fail because of the change count (`services.gates.classes`), and
findings that rest on other failures alone count as if nothing had been run. Where the base came to nothing, nobody
knows which findings are new: only those that a check shows which passes on the base count. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from analyzer.findings import Severity
from services.checks.plan import BUDGET_SPENT
from services.findings.failures import is_failure
from services.findings.model import SettledFinding, TargetResult
from services.gates.policy import GatePolicy, RuleMode
from services.reports.document import CLASS_WORDS, AnalysisStatus, CheckInfo, CheckVerdict, Gate, GateCondition

# An explanation is one line in a terminal and in a check run: three places tell where to look, the report has the rest.
_NAMED = 3
_UNDECIDED: dict[CheckVerdict, str] = {
    "inconclusive": "inconclusive",
    "error": "could not run",
    "skipped": "skipped",
}
_DECIDED_ELSEWHERE = frozenset({"accepted", "false_positive"})
COMPLETE = "analysis complete"


def evaluate(
    findings: Sequence[SettledFinding],
    targets: Sequence[TargetResult],
    policy: GatePolicy,
    *,
    status: AnalysisStatus = "finished",
    status_reason: str | None = None,
    base_is_missing: bool = False,
) -> Gate:
    """The gate of one analysis. `status` is how the analysis ended, `status_reason` why it is not `finished`.

    `base_is_missing`: there is something to compare with, and its own analysis came to nothing.
    """
    conditions = []
    judged = _Judged(targets, policy, base_is_missing=base_is_missing)
    if policy.no_failing_check:
        conditions.append(_no_failing_check(targets, _excused(findings, judged)))
    if policy.no_new_error:
        conditions.append(_no_new(Severity.ERROR, findings, judged))
    if policy.no_new_warning:
        conditions.append(_no_new(Severity.WARNING, findings, judged))
    if policy.complete:
        conditions.append(_complete(status, status_reason, targets))
    return Gate(passed=all(condition.passed for condition in conditions), conditions=conditions)


class _Judged:
    """Which findings count, and how grave they are, by the policy and by what is known of the failing checks."""

    def __init__(self, targets: Sequence[TargetResult], policy: GatePolicy, *, base_is_missing: bool) -> None:
        self._policy = policy
        self.base_is_missing = base_is_missing
        failing = [
            ((target.declaration.name, check.check, check.device), check)
            for target in targets
            for check in target.checks
            if check.verdict == "fail"
        ]
        self._not_to_blame = frozenset(key for key, check in failing if not check.may_block)
        self._new_failures = frozenset(key for key, check in failing if check.baseline_class == "new")
        self.compared = any(check.baseline_class is not None for _, check in failing)

    def counts(self, settled: SettledFinding) -> bool:
        """Whether the finding can fail the gate, if it is grave enough."""
        return (
            self._is_new(settled)
            and settled.triage not in _DECIDED_ELSEWHERE
            and settled.settlement.verdict != "not_reproduced"
            and self._policy.mode(settled.finding.rule, settled.finding.name) is RuleMode.BLOCK
            and not (is_failure(settled.finding) and self._rests_on_others(settled))
        )

    def severity(self, settled: SettledFinding) -> Severity:
        """That of the rule where only failures confirm it that the change has not brought about."""
        return settled.finding.severity if self._rests_on_others(settled) else settled.severity

    def _is_new(self, settled: SettledFinding) -> bool:
        if not self.base_is_missing:
            return settled.is_new
        return settled.is_new and any(key in self._new_failures for key in checks_of(settled))

    def _rests_on_others(self, settled: SettledFinding) -> bool:
        if not self._not_to_blame or settled.settlement.verdict != "confirmed":
            return False
        told = checks_of(settled)
        return bool(told) and all(key in self._not_to_blame for key in told)


def _excused(findings: Sequence[SettledFinding], judged: _Judged) -> frozenset[tuple[object, ...]]:
    """The failing checks all of whose findings are known, decided or not blocking, by target, check and device."""
    counting: dict[tuple[object, ...], bool] = {}
    for settled in findings:
        for key in checks_of(settled) if "checks" in settled.settlement.evidence else ():
            counting[key] = counting.get(key, False) or judged.counts(settled)
    return frozenset(key for key, counts in counting.items() if not counts)


def checks_of(settled: SettledFinding) -> list[tuple[object, ...]]:
    """The checks that a finding rests on, by target, check and device."""
    evidence = settled.settlement.evidence
    told = evidence.get("checks")
    records = [record for record in told if isinstance(record, Mapping)] if isinstance(told, list) else [evidence]
    keys = [(record.get("target"), record.get("check"), record.get("device")) for record in records]
    return [key for key in keys if None not in key]


def _no_failing_check(targets: Sequence[TargetResult], excused: frozenset[tuple[object, ...]]) -> GateCondition:
    ran: list[tuple[TargetResult, CheckInfo]] = [(target, check) for target in targets for check in target.checks]
    counts = Counter(check.verdict for _, check in ran)
    failures = [(target, check) for target, check in ran if check.verdict == "fail"]
    to_blame = [(target, check) for target, check in failures if check.may_block]
    failing = [
        f"{check.check} on {target.declaration.name}"
        for target, check in to_blame
        if (target.declaration.name, check.check, check.device) not in excused
    ]
    others = len(to_blame) - len(failing)
    classes = Counter(check.baseline_class for _, check in failures)
    of_others = [f"{classes[kind]} {words}" for kind, words in CLASS_WORDS.items() if kind != "new" and classes[kind]]
    undecided = ", ".join(f"{counts[verdict]} {words}" for verdict, words in _UNDECIDED.items() if counts[verdict])
    known = f"{others} more fail{'s' if others == 1 else ''} as known or decided" if others else ""
    asides = [words for words in (known, *of_others, undecided) if words]
    tail = f" ({', '.join(asides)})" if asides else ""
    if failing:
        new = " and are new" if len(classes) > (None in classes) else ""
        explanation = f"{len(failing)} of {len(ran)} fail{new}: {_some(failing)}{tail}"
    elif of_others:
        explanation = f"none of {len(ran)} fails because of the change{tail}"
    elif ran:
        explanation = f"none of {len(ran)} fails, {counts['pass']} pass{'es' if counts['pass'] == 1 else ''}{tail}"
    else:
        explanation = "no check was run: " + (
            f"of {len(targets)} target{'s' if len(targets) > 1 else ''} none was run"
            if targets
            else "there is no module, autograd.Function or tensor function to run"
        )
    return GateCondition(name="no check fails", passed=not failing, explanation=explanation)


def _no_new(severity: Severity, findings: Sequence[SettledFinding], judged: _Judged) -> GateCondition:
    of_severity = [settled for settled in findings if judged.severity(settled) is severity]
    counting = [settled for settled in of_severity if judged.counts(settled)]
    places = [f"{settled.finding.rule} at {settled.finding.region.place}" for settled in counting]
    others = len(of_severity) - len(counting)
    why = "not reproduced, not brought about by the change" if judged.compared else "not reproduced"
    tail = f" ({others} more do not count: known, decided, {why} or not blocking)" if others else ""
    if counting:
        explanation = f"{len(counting)} new: {_some(places)}{tail}"
    elif others and judged.base_is_missing:
        explanation = f"nobody knows which of {others} are new: the base was not analysed to its end"
    else:
        explanation = f"no new {severity.value}{tail}"
    return GateCondition(name=f"no new {severity.value}", passed=not counting, explanation=explanation)


def _done(targets: Sequence[TargetResult]) -> str:
    """A spent budget is a bound that was asked for, and nobody should take it for all targets."""
    left_out = sum(target.not_run_reason == BUDGET_SPENT for target in targets)
    if not left_out:
        return "everything that was asked for was done"
    return f"as far as the budget went: {left_out} of {len(targets)} targets were not begun"


def _complete(status: AnalysisStatus, reason: str | None, targets: Sequence[TargetResult]) -> GateCondition:
    complete = status == "finished"
    explanation = _done(targets) if complete else f"the analysis is {status}"
    if not complete and reason:
        explanation += f": {reason}"
    return GateCondition(name=COMPLETE, passed=complete, explanation=explanation)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
