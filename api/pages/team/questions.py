"""The filters of an inbox: read out of an address, written into one, and offered with how many there are of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from fastapi import Query

from api.pages.selections import ListQuestion
from services.triage.model import NOBODY, SEVERITIES, UNDECIDED, Facets, FindingFilter

_STATES: Final = ("open", "regressed", "accepted", "false_positive", "fixed")
_VERDICTS: Final = ("confirmed", "not_reproduced", "not_exercised", "static_only")
_WHERE: Final = {"main": "on the main line", "proposals": "in proposals only"}

State = Literal["", "undecided", "any", "open", "regressed", "accepted", "false_positive", "fixed"]
Severity = Literal["", "error", "warning", "note"]
Verdict = Literal["", "confirmed", "not_reproduced", "not_exercised", "static_only"]
Where = Literal["", "main", "proposals"]
_Text = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class Question(ListQuestion):
    """What is asked of an inbox. Nothing said of the state means what is still to be decided about."""

    state: State = ""
    severity: Severity = ""
    verdict: Verdict = ""
    where: Where = ""
    rule: str = ""
    path: str = ""
    assignee: str = ""
    text: str = ""

    def filter(self) -> FindingFilter:
        """The same for the use case."""
        states = UNDECIDED if self.state in {"", "undecided"} else () if self.state == "any" else (self.state,)
        return FindingFilter(
            states=states,  # type: ignore[arg-type] # the type of a query has a few values more
            severities=(self.severity,) if self.severity else (),
            verdicts=(self.verdict,) if self.verdict else (),
            on_main=None if not self.where else self.where == "main",
            rule=self.rule or None,
            path=self.path or None,
            assignee=self.assignee or None,
            text=self.text or None,
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether anything but the state narrows what is shown."""
        return replace(self, state="") != Question()


def asked(
    *,
    state: State = "",
    severity: Severity = "",
    verdict: Verdict = "",
    where: Where = "",
    rule: _Text = "",
    path: _Text = "",
    assignee: _Text = "",
    text: _Text = "",
) -> Question:
    """The question that an address asks."""
    return Question(state, severity, verdict, where, rule.strip(), path.strip(), assignee, text.strip())


@dataclass(frozen=True, slots=True)
class Choices:
    """What each filter offers: (value, label with its number) pairs, those without any finding left out."""

    states: tuple[tuple[str, str], ...]
    severities: tuple[tuple[str, str], ...]
    verdicts: tuple[tuple[str, str], ...]
    where: tuple[tuple[str, str], ...]
    rules: tuple[tuple[str, str], ...]
    assignees: tuple[tuple[str, str], ...]


def choices(question: Question, facets: Facets) -> Choices:
    """What to offer. What is chosen stays on offer, also when nothing has it."""
    undecided = sum(facets.states.get(state, 0) for state in UNDECIDED)
    everything = sum(facets.states.values())
    where = {"main": facets.on_main.get(True, 0), "proposals": facets.on_main.get(False, 0)}
    return Choices(
        states=(
            ("", f"to be decided ({undecided:,})"),
            *_offered(_STATES, facets.states, question.state),
            ("any", f"any ({everything:,})"),
        ),
        severities=(("", "any"), *_offered(SEVERITIES, facets.severities, question.severity)),
        verdicts=(("", "any"), *_offered(_VERDICTS, facets.verdicts, question.verdict)),
        where=(("", "anywhere"), *((key, f"{_WHERE[key]} ({number:,})") for key, number in where.items())),
        rules=(
            ("", "any"),
            *((item.key, f"{item.key} {item.name} ({item.count:,})") for item in facets.rules),
            *_chosen(question.rule, {item.key for item in facets.rules}),
        ),
        assignees=(
            ("", "anybody"),
            *(
                (item.key, f"{'nobody' if item.key == NOBODY else item.name} ({item.count:,})")
                for item in facets.assignees
            ),
            *_chosen(question.assignee, {item.key for item in facets.assignees}),
        ),
    )


def _offered(values: tuple[str, ...], counts: Mapping[str, int], chosen: str) -> list[tuple[str, str]]:
    return [
        (value, f"{value.replace('_', ' ')} ({counts.get(value, 0):,})")
        for value in values
        if counts.get(value) or value == chosen
    ]


def _chosen(value: str, offered: set[str]) -> list[tuple[str, str]]:
    return [(value, f"{value} (0)")] if value and value not in offered else []
