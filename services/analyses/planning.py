"""In which order the targets of an analysis are run, and what came of that plan. What is waited for comes first. Pure.

Batches are cut from this order, so neighbours share a sandbox: within one urgency the targets of a file stay together,
where one of them is often a part of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from analyzer.findings import Finding, Severity, TargetDeclaration
from services.checks.plan import BY_DEFAULT, NOT_BEGUN
from services.findings.hypotheses import Suspicions
from services.findings.model import TargetResult
from services.reports.document import PlanInfo

_URGENCY: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_CHANGED: Final = len(_URGENCY)
_REST: Final = _CHANGED + 1


def run_order(
    targets: Sequence[TargetDeclaration],
    suspicions: Suspicions,
    findings: Collection[Finding],
    changed: Collection[str] | None = None,
) -> list[int]:
    """The positions of the targets in the order of running them.

    Those that a finding waits for come first, by its severity; then those of `changed` files (None: nobody knows what
    changed); then the rest. Within each by path, from the end of a file to its beginning: what is built of parts stands
    after them as a rule, and shows how they are called.
    """
    severity = {finding.fingerprint: _URGENCY[finding.severity] for finding in findings}

    def urgency(target: TargetDeclaration) -> int:
        suspected = [severity.get(str(item["fingerprint"]), _REST) for item in suspicions.of(target)]
        of_change = _CHANGED if changed is not None and target.path in changed else _REST
        return min([*suspected, of_change])

    ranks = [urgency(target) for target in targets]
    return sorted(range(len(targets)), key=lambda index: (ranks[index], targets[index].path, -targets[index].line))


def plan_info(
    targets: Sequence[TargetResult], *, budget_s: float, checks: Sequence[str], examples: str | None
) -> PlanInfo:
    """What was to be run, and what of it was. `budget_s` is 0 without a budget, `checks` empty for those by default."""
    planned = [target for target in targets if target.declaration.eligible]
    left_out = Counter(target.not_run_reason for target in planned if target.not_run_reason in NOT_BEGUN)
    begun = [target for target in planned if target.harness or target.checks or target.not_run_reason]
    return PlanInfo(
        budget_s=budget_s or None,
        planned=len(planned),
        run=len(begun) - left_out.total(),
        left_out={str(reason): number for reason, number in left_out.items()},
        checks=list(checks or BY_DEFAULT),
        checks_left_out=dict(
            Counter(check.check for target in planned for check in target.checks if check.evidence.get("left_out"))
        ),
        examples=examples,
    )
