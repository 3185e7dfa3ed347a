"""Decides whether an analysis passes, condition by condition, each with the sentence a person needs.

Only new, open findings whose rule may block count; a finding that was executed and held (`not_reproduced`) does not.
Notes never fail a gate, nor do checks that did not come to a verdict: those are named, so that nobody takes silence
for a pass. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analyzer.findings import Severity
from services.checks.plan import BUDGET_SPENT
from services.findings.model import SettledFinding, TargetResult
from services.gates.policy import GatePolicy, RuleMode
from services.reports.document import AnalysisStatus, CheckInfo, CheckVerdict, Gate, GateCondition

# An explanation is one line in a terminal and in a check run: three places tell where to look, the report has the rest.
_NAMED = 3
_UNDECIDED: dict[CheckVerdict, str] = {
    "inconclusive": "inconclusive",
    "error": "could not run",
    "skipped": "skipped",
}
_DECIDED_ELSEWHERE = frozenset({"accepted", "false_positive"})


def evaluate(
    findings: Sequence[SettledFinding],
    targets: Sequence[TargetResult],
    policy: GatePolicy,
    *,
    status: AnalysisStatus = "finished",
    status_reason: str | None = None,
) -> Gate:
    """The gate of one analysis. `status` is how the analysis ended, `status_reason` why it is not `finished`."""
    conditions = []
    if policy.no_failing_check:
        conditions.append(_no_failing_check(targets, _excused(findings, policy)))
    if policy.no_new_error:
        conditions.append(_no_new(Severity.ERROR, findings, policy))
    if policy.no_new_warning:
        conditions.append(_no_new(Severity.WARNING, findings, policy))
    if policy.complete:
        conditions.append(_complete(status, status_reason, targets))
    return Gate(passed=all(condition.passed for condition in conditions), conditions=conditions)


def _excused(findings: Sequence[SettledFinding], policy: GatePolicy) -> frozenset[tuple[object, ...]]:
    """The failing checks all of whose findings are known, decided or not blocking, by target, check and device."""
    counting: dict[tuple[object, ...], bool] = {}
    for settled in findings:
        records = settled.settlement.evidence.get("checks")
        for record in records if isinstance(records, list) else ():
            key = (record.get("target"), record.get("check"), record.get("device"))
            counting[key] = counting.get(key, False) or _counts(settled, policy)
    return frozenset(key for key, counts in counting.items() if not counts)


def _no_failing_check(targets: Sequence[TargetResult], excused: frozenset[tuple[object, ...]]) -> GateCondition:
    ran: list[tuple[TargetResult, CheckInfo]] = [(target, check) for target in targets for check in target.checks]
    counts = Counter(check.verdict for _, check in ran)
    failures = [(target, check) for target, check in ran if check.verdict == "fail"]
    failing = [
        f"{check.check} on {target.declaration.name}"
        for target, check in failures
        if (target.declaration.name, check.check, check.device) not in excused
    ]
    others = len(failures) - len(failing)
    undecided = ", ".join(f"{counts[verdict]} {words}" for verdict, words in _UNDECIDED.items() if counts[verdict])
    known = f"{others} more fail{'s' if others == 1 else ''} as known or decided" if others else ""
    tail = f" ({', '.join(words for words in (known, undecided) if words)})" if known or undecided else ""
    if failing:
        explanation = f"{len(failing)} of {len(ran)} fail: {_some(failing)}{tail}"
    elif ran:
        explanation = f"none of {len(ran)} fails, {counts['pass']} pass{'es' if counts['pass'] == 1 else ''}{tail}"
    else:
        explanation = "no check was run: " + (
            f"of {len(targets)} target{'s' if len(targets) > 1 else ''} none was run"
            if targets
            else "there is no module, autograd.Function or tensor function to run"
        )
    return GateCondition(name="no check fails", passed=not failing, explanation=explanation)


def _no_new(severity: Severity, findings: Sequence[SettledFinding], policy: GatePolicy) -> GateCondition:
    of_severity = [settled for settled in findings if settled.severity is severity]
    counting = [settled for settled in of_severity if _counts(settled, policy)]
    places = [f"{settled.finding.rule} at {settled.finding.region.place}" for settled in counting]
    others = len(of_severity) - len(counting)
    tail = f" ({others} more do not count: known, decided, not reproduced or not blocking)" if others else ""
    explanation = f"{len(counting)} new: {_some(places)}{tail}" if counting else f"no new {severity.value}{tail}"
    return GateCondition(name=f"no new {severity.value}", passed=not counting, explanation=explanation)


def _counts(settled: SettledFinding, policy: GatePolicy) -> bool:
    return (
        settled.is_new
        and settled.triage not in _DECIDED_ELSEWHERE
        and settled.settlement.verdict != "not_reproduced"
        and policy.mode(settled.finding.rule, settled.finding.name) is RuleMode.BLOCK
    )


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
    return GateCondition(name="analysis complete", passed=complete, explanation=explanation)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
