"""What people may decide about a finding, and the rules that a decision obeys. Plain values; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from services.reports.document import TriageState
from services.reports.untrusted import shorten
from services.triage.errors import InvalidDecisionError
from services.triage.expiry import release
from services.triage.model import FOR_GOOD, Until

# One decision reaches so many findings at most, so that it is done within a second.
MOST_AT_ONCE: Final = 500
LONGEST_TEXT: Final = 4_000
_MOST_OCCURRENCES: Final = 10_000
# The value of `Until.torch` that means the version which the main line runs with now.
PRESENT_TORCH: Final = "present"

Verb = Literal["accept", "false_positive", "reopen"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Accept a finding as it is, for now or for good; call it a false positive; or open it again."""

    verb: Verb
    reason: str = ""
    until: Until = FOR_GOOD


@dataclass(frozen=True, slots=True)
class Change:
    """A decision, a new assignee (an id or a name; None: nobody) if `reassign` says so, or both."""

    decision: Decision | None = None
    reassign: bool = False
    assignee: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decision did to one finding: its new state, or why there is nothing to change."""

    state: TriageState
    changed: bool


def checked(decision: Decision, *, now: datetime, torch: str | None) -> Decision:
    """The decision as it is kept; `torch` is the version that the main line runs with, if it runs anything.

    Raises `InvalidDecisionError` for a decision without a reason, or one whose end can't be.
    """
    reason = checked_text(decision.reason, "a reason", required=decision.verb != "reopen")
    until = decision.until
    if decision.verb != "accept" and until != FOR_GOOD:
        raise InvalidDecisionError("only an acceptance can end by itself", field="until")
    if until.date is not None and until.date.tzinfo is None:
        raise InvalidDecisionError("the date needs a time zone", field="until.date")
    if until.date is not None and until.date <= now:
        raise InvalidDecisionError("the date has passed: choose a later one", field="until.date")
    if until.occurrences is not None and not 1 <= until.occurrences <= _MOST_OCCURRENCES:
        raise InvalidDecisionError(
            f"the number of analyses lies between 1 and {_MOST_OCCURRENCES:,}", field="until.occurrences"
        )
    return Decision(decision.verb, reason, Until(until.date, until.occurrences, _version(until.torch, torch)))


def checked_text(text: str, what: str, *, required: bool = True) -> str:
    """What a person wrote, without the space around it. Raises `InvalidDecisionError`."""
    text = text.strip()
    if required and not text:
        raise InvalidDecisionError(f"{what} is required", field="reason")
    if len(text) > LONGEST_TEXT:
        raise InvalidDecisionError(f"{what} may have {LONGEST_TEXT:,} characters", field="reason")
    return text


def outcome(decision: Decision, state: TriageState, *, is_gone: bool) -> Outcome:
    """What the decision makes of a finding in `state`; `is_gone`: the main line was searched for it, in vain.

    Raises `InvalidDecisionError` where it makes no sense.
    """
    if decision.verb == "reopen":
        if state in {"open", "regressed", "fixed"}:
            return Outcome(state, changed=False)
        return Outcome("fixed" if is_gone else "open", changed=True)
    if decision.verb == "accept" and state == "fixed":
        raise InvalidDecisionError("the finding is fixed: there is nothing to accept", field="state")
    return Outcome("accepted" if decision.verb == "accept" else "false_positive", changed=True)


def _version(asked: str | None, torch: str | None) -> str | None:
    if asked is None:
        return None
    if asked == PRESENT_TORCH:
        if torch is None:
            raise InvalidDecisionError(
                "no analysis of the main line has run anything yet, so that nobody knows its torch: name a version",
                field="until.torch",
            )
        return torch
    if release(asked) is None:
        raise InvalidDecisionError(
            f"{shorten(asked, 40)!r} is no version of torch, such as 2.13.0", field="until.torch"
        )
    return asked.strip()
