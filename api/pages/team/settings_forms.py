"""Turns the fields of the settings forms into settings of a project. Pure; what a value may be is judged by the domain.

A form is one part of the settings: what it does not show stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.gates.policy import RuleMode
from services.projects.settings import BotSettings, GateSettings, ProjectSettings, read_project_settings

MODE_PREFIX: Final = "mode-"
CONDITIONS: Final = (
    ("no_failing_check", "No check fails", "A check that ran and failed, and is not known or decided."),
    ("no_new_error", "No new error", "A new finding of severity error that is confirmed or was not refuted."),
    ("no_new_warning", "No new warning", "The same for warnings."),
    ("complete", "The analysis is complete", "Nothing of Gradproof's own kept part of it from running."),
)
SWITCHES: Final = (
    ("enabled", "Write into pull requests at all"),
    ("blocks", "A gate that fails makes the check fail; otherwise it only advises"),
    ("annotations", "Annotate the check with all new findings"),
    ("inline", "Comment on added lines"),
    ("suggestions", "Suggest safe fixes that execution has verified"),
    ("drafts", "Look at drafts, too"),
    ("sarif", "Upload SARIF to code scanning"),
)
ASSIGNMENTS: Final = (
    ("nobody", "nobody"),
    ("owner", "the code owner of the file, as CODEOWNERS of the main line says"),
    ("author", "who wrote the pull request or the last commit"),
)
_NUMBERS: Final = ("inline_most", "debounce_s", "pause_after_pushes")


def with_gate(present: ProjectSettings, fields: Mapping[str, str]) -> ProjectSettings:
    """The settings with the gate of a form. Raises `InvalidProjectSettingsError`."""
    gate = {name: {"yes": True, "no": False, "": None}.get(fields.get(name, ""), "?") for name, _, _ in CONDITIONS}
    return _changed(present, gate=gate)


def with_bot(present: ProjectSettings, fields: Mapping[str, str]) -> ProjectSettings:
    """The settings with the bot of a form, where a box that is not ticked is not sent.

    Raises `InvalidProjectSettingsError`.
    """
    bot: dict[str, object] = {name: fields.get(name) == "true" for name, _ in SWITCHES}
    bot |= {name: fields[name].strip() for name in _NUMBERS if fields.get(name, "").strip()}
    return _changed(present, bot={**bot, "summary": fields.get("summary", BotSettings().summary)})


def with_assignment(present: ProjectSettings, fields: Mapping[str, str]) -> ProjectSettings:
    """The settings with whom new findings are given to. Raises `InvalidProjectSettingsError`."""
    return _changed(present, assign=fields.get("assign", ""))


def with_modes(present: ProjectSettings, fields: Mapping[str, str]) -> ProjectSettings:
    """The settings with the modes of a form: one field for each rule, empty for the default.

    Raises `InvalidProjectSettingsError`.
    """
    modes: dict[str, object] = dict(present.modes)
    for name, value in fields.items():
        key = name.removeprefix(MODE_PREFIX)
        if key != name:
            if value:
                modes[key] = value
            else:
                modes.pop(key, None)
    return _changed(present, modes=modes)


def with_known_rules(present: ProjectSettings, rules: tuple[str, ...]) -> ProjectSettings:
    """The settings of a team that has taken note of these rules; those it had taken note of before stay."""
    known = () if present.known_rules is None else present.known_rules
    return _changed(present, known_rules=sorted({*known, *rules}))


def mode_of(settings: ProjectSettings, rule: str, name: str) -> RuleMode | None:
    """The mode that a project has set for a rule by its id or name; None: the default, or that of a family."""
    return settings.modes.get(rule) or settings.modes.get(name)


def gate_value(gate: GateSettings, name: str) -> str:
    """What the field of a condition shows."""
    value = getattr(gate, name)
    return "" if value is None else "yes" if value else "no"


def _changed(present: ProjectSettings, **parts: object) -> ProjectSettings:
    return read_project_settings(present.model_dump(mode="json") | parts)
