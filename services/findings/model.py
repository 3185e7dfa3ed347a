"""The values that settling works on: a target with what came of running it, a finding with its verdict.

Plain immutable values, used by the service and by the command line without a server alike. This module must not know
the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analyzer.findings import Finding, Severity, TargetDeclaration
from services.reports.document import CheckInfo, FindingVerdict, Harness, TriageState

# Checks that confirm a finding without failing because of it.
_NOTING = ("finding_search",)


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A declared target and everything that running it brought, over all devices.

    `not_run_reason` is one of a few stable words (see the probe's protocol) and None when checks ran;
    `not_run_detail` is the sentence behind it. `reused`: it was all found out before, and nothing has changed since.
    """

    declaration: TargetDeclaration
    harness: Harness | None = None
    not_run_reason: str | None = None
    not_run_detail: str = ""
    checks: tuple[CheckInfo, ...] = ()
    reused: bool = False
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What execution says about one finding. `evidence` names the target and the check it rests on."""

    verdict: FindingVerdict
    reason: str
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettledFinding:
    """A finding with its settlement, whether the base analysis lacks it, and what people decided about it."""

    finding: Finding
    settlement: Settlement
    is_new: bool = True
    triage: TriageState = "open"

    @property
    def severity(self) -> Severity:
        """That of the rule, unless execution has spoken: what was shown is an error, what held is a note.

        A note that `finding_search` found to be so stays one: it warns of cost, or of another machine, and nothing
        failed here because of it.
        """
        verdict = self.settlement.verdict
        if verdict == "not_reproduced":
            return Severity.NOTE
        only_noted = self.finding.severity is Severity.NOTE and self.settlement.evidence.get("check") in _NOTING
        return Severity.ERROR if verdict == "confirmed" and not only_noted else self.finding.severity
