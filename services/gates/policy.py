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
        return mode_of(self.modes, rule, name) or RuleMode.BLOCK


def mode_of(modes: Mapping[str, RuleMode], rule: str, name: str) -> RuleMode | None:
    """What `modes` says of a rule: by its id, its name, or the longest beginning of its id; None if it says nothing."""
    for key in (rule, name):
        if key in modes:
            return modes[key]
    beginnings = [key for key in modes if rule.startswith(key)]
    return modes[max(beginnings, key=len)] if beginnings else None


def retain(findings: Iterable[Finding], policy: GatePolicy) -> tuple[Finding, ...]:
    """The findings whose rule is not switched off."""
    return tuple(finding for finding in findings if policy.mode(finding.rule, finding.name) is not RuleMode.OFF)
