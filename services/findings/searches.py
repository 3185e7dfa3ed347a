"""What a check that was aimed at findings says of each: it hit, it searched and missed, it never came there. Pure.

The check ran beside submitted code, so its word is taken only in the shape that the probe gives it; and a lie can only
be about the liar's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from services.reports.gradient_evidence import in_words

SearchOutcome = Literal["confirmed", "not_reproduced", "not_reached"]

# In the order of what they are worth, should one finding be spoken of twice.
_WORTH: Final[tuple[SearchOutcome, ...]] = ("confirmed", "not_reproduced", "not_reached")
_MOST: Final = 1_000
# How the probe begins the reason for a fix that it could not run or not judge.
NOT_TRIED: Final = "not tried: "


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """Whether the fixed code was run and is clean where the fault showed, and the same elsewhere."""

    verified: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Search:
    """The outcome for one finding.

    `closest` says in words how near a search that missed came, if it is known. `text` is the check's own account of
    this one finding: what showed it, what was tried, or why nothing was.
    """

    outcome: SearchOutcome
    closest: str | None = None
    text: str | None = None
    fix: FixOutcome | None = None


def searches(evidence: Mapping[str, object]) -> dict[str, Search]:
    """By fingerprint, from the evidence of a check; empty if it was aimed at nothing."""
    records = evidence.get("hypotheses")
    found: dict[str, Search] = {}
    for record in records[:_MOST] if isinstance(records, list) else ():
        if not isinstance(record, Mapping):
            continue
        fingerprint, outcome = record.get("fingerprint"), record.get("outcome")
        if not isinstance(fingerprint, str) or outcome not in _WORTH:
            continue
        said = Search(
            cast("SearchOutcome", outcome),
            _closest(record.get("closest")),
            in_words(record.get("text")),
            _fix(record.get("fix")),
        )
        before = found.get(fingerprint)
        if before is None or _WORTH.index(said.outcome) < _WORTH.index(before.outcome):
            found[fingerprint] = said
    return found


def _fix(value: object) -> FixOutcome | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("verified"), bool):
        return None
    return FixOutcome(value["verified"], in_words(value.get("reason")) or "no reason given")


def _closest(value: object) -> str | None:
    """A number is the distance of the operand from its singular value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0:
            return "its operand was at the singular value itself, and all stayed finite"
        try:
            return f"its operand came within {value:.3g} of the singular value"
        except OverflowError:
            return None
    return in_words(value)
