"""The policy in force: what a project has set for itself, over what the submitted repository says. Pure.

A change that is proposed can edit `[tool.gradproof]` as it can edit any file. It must not be able to switch off what
judges it: where the project says something, the repository is not asked, and where it says nothing, the commit that the
change is compared with is.
"""

from __future__ import annotations

from dataclasses import replace

from analyzer.registry import all_rules
from services.checks.plan import CHECKS
from services.gates.policy import GatePolicy, RuleMode, mode_of
from services.projects.settings import ProjectSettings


def project_modes(settings: ProjectSettings) -> dict[str, RuleMode]:
    """By id, the mode of each rule and check that the project decides itself.

    A rule that the team has not taken note of is only monitored, whatever the repository says, unless the project names
    a mode for it.
    """
    decided: dict[str, RuleMode] = {}
    for rule in all_rules():
        mode = mode_of(settings.modes, rule.id, rule.name)
        if mode is None and settings.known_rules is not None and rule.id not in settings.known_rules:
            mode = RuleMode.MONITOR
        if mode is not None:
            decided[rule.id] = mode
    for check in CHECKS:
        if check in settings.modes:
            decided[check] = settings.modes[check]
    return decided


def proposal_modes(judging: GatePolicy | None, settings: ProjectSettings) -> dict[str, RuleMode]:
    """By id, the mode of each rule that goes before what a submitted repository says itself, when it is read.

    `judging` is what is said on the base of a proposal (None: nothing is known of one): then all rules are decided.
    """
    decided = {} if judging is None else {rule.id: judging.mode(rule.id, rule.name) for rule in all_rules()}
    return decided | project_modes(settings)


def effective_policy(policy: GatePolicy, settings: ProjectSettings) -> GatePolicy:
    """The policy of the repository under the settings of its project."""
    gate = settings.gate
    chosen = {
        name: value
        for name, value in (
            ("no_failing_check", gate.no_failing_check),
            ("no_new_error", gate.no_new_error),
            ("no_new_warning", gate.no_new_warning),
            ("complete", gate.complete),
        )
        if value is not None
    }
    modes = {**policy.modes, **settings.modes, **project_modes(settings)}
    return replace(policy, modes=modes, **chosen)
