"""The values that settling works on: a target with what came of running it, a finding with its verdict.

Plain immutable values, used by the service and by the command line without a server alike. This module must not know
the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analyzer.findings import Finding, TargetDeclaration
from services.reports.document import CheckInfo, FindingVerdict, Harness, TriageState


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A declared target and everything that running it brought, over all devices.

    `not_run_reason` is one of a few stable words (see the probe's protocol) and None when checks ran;
    `not_run_detail` is the sentence behind it.
    """

    declaration: TargetDeclaration
    harness: Harness | None = None
    not_run_reason: str | None = None
    not_run_detail: str = ""
    checks: tuple[CheckInfo, ...] = ()


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
