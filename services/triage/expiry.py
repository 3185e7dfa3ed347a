"""When an acceptance ends: at a date, after a number of further analyses, or with a newer torch. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Final

from services.triage.model import Until

_RELEASE: Final = re.compile(r"\s*v?(\d+(?:\.\d+)*)", re.ASCII)


class Ending(StrEnum):
    """Why an acceptance has ended, as its history says it."""

    DATE = "accepted until a date that has come"
    OCCURRENCES = "accepted for a number of analyses that have shown it"
    TORCH = "accepted for a version of torch, and a newer one was run"


def ending_of(until: Until, *, now: datetime, occurrences: int, torch: str | None) -> Ending | None:
    """Why the acceptance has ended, if it has.

    `occurrences` counts the analyses that have shown the finding since it was accepted, the present one included;
    `torch` is the version that this one ran with, None if it ran nothing.
    """
    if until.date is not None and now >= until.date:
        return Ending.DATE
    if until.occurrences is not None and occurrences > until.occurrences:
        return Ending.OCCURRENCES
    if until.torch is not None and torch is not None and is_newer(torch, until.torch):
        return Ending.TORCH
    return None


def is_newer(version: str, than: str) -> bool:
    """Whether one version of torch is newer than another, by the numbers of the release: a build is no version."""
    mine, theirs = release(version), release(than)
    return mine is not None and theirs is not None and mine > theirs


def release(version: str) -> tuple[int, ...] | None:
    """`2.13.0+cu126` as (2, 13); trailing noughts tell nothing. None for what is no version."""
    match = _RELEASE.match(version[:100])
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
