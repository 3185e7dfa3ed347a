"""What a project has set for itself: modes of rules, its gate, what the bot may write.

The submitted repository may say more about modes and the gate (`[tool.gradproof]`); what is said here goes first, since
a change that is proposed must not be able to switch off what judges it. This module must not know the database.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.gates.policy import RuleMode
from services.problems import BadInputError


class InvalidProjectSettingsError(BadInputError):
    """A setting of a project is unknown or has an unusable value; `details` names it."""

    code = "invalid-project-settings"
    title = "The settings of the project can't be used"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GateSettings(_Part):
    """Which conditions count; null: what the repository says, or else the default."""

    no_failing_check: bool | None = None
    no_new_error: bool | None = None
    no_new_warning: bool | None = None
    complete: bool | None = None


class BotSettings(_Part):
    """What is written into pull requests.

    `blocks`: a gate that fails makes the check fail; otherwise the check only advises. `summary`: `findings` writes one
    comment when there is something to say, `always` also when not.
    """

    enabled: bool = True
    blocks: bool = False
    summary: Literal["findings", "always", "never"] = "findings"
    inline: bool = True
    inline_most: int = Field(default=30, ge=0, le=30)
    suggestions: bool = True
    annotations: bool = True
    sarif: bool = False
    drafts: bool = False
    debounce_s: int = Field(default=20, ge=0, le=3600)
    pause_after_pushes: int = Field(default=30, ge=0, le=1000, description="0: never")


class ProjectSettings(_Part):
    """All of it. `modes` maps a rule id, a rule name or the beginning of an id to its mode.

    `known_rules` are the rules that the team has taken note of: one that a newer Gradproof brings is not among them and
    is only monitored until somebody adopts it. Null: all that there are. `assign` says whom new findings are given to,
    if that is a member: `owner`, whom the main line's CODEOWNERS names first for the file; `author`, who wrote the pull
    request or the last commit, but nobody for what a project's first analysis finds.
    """

    modes: dict[str, RuleMode] = Field(default={}, max_length=500)
    known_rules: tuple[str, ...] | None = Field(default=None, max_length=2000)
    gate: GateSettings = GateSettings()
    bot: BotSettings = BotSettings()
    assign: Literal["nobody", "owner", "author"] = "nobody"


def read_project_settings(stored: object) -> ProjectSettings:
    """Settings out of a row or of a request. Raises `InvalidProjectSettingsError`, which names key and reason."""
    try:
        return ProjectSettings.model_validate(stored)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidProjectSettingsError(f"{place}: {first['msg']}", key=place) from None
