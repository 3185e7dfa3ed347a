"""What a project asks of an analysis before it may pass.

Plain values: where they come from (`[tool.gradproof]`, a project's settings) is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from analyzer.findings import Finding


class RuleMode(StrEnum):
    """What a rule may do: `off` is dropped, `monitor` and `comment` are shown only, `block` can fail a gate."""

    OFF = "off"
    MONITOR = "monitor"
    COMMENT = "comment"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Which conditions count. `modes` maps a rule id, a rule name or the beginning of an id (`GP1`) to its mode."""

    no_failing_check: bool = True
    no_new_error: bool = True
    no_new_warning: bool = True
    complete: bool = True
    modes: Mapping[str, RuleMode] = field(default_factory=dict)

    def mode(self, rule: str, name: str) -> RuleMode:
        """The mode of a rule: the id decides, then the name, then the longest beginning of the id, else `block`."""
        for key in (rule, name):
            if key in self.modes:
                return self.modes[key]
        beginnings = [key for key in self.modes if rule.startswith(key)]
        return self.modes[max(beginnings, key=len)] if beginnings else RuleMode.BLOCK


def retain(findings: Iterable[Finding], policy: GatePolicy) -> tuple[Finding, ...]:
    """The findings whose rule is not switched off."""
    return tuple(finding for finding in findings if policy.mode(finding.rule, finding.name) is not RuleMode.OFF)
