"""The plain values of digests: how often, what there is to tell, and what of it goes into a mail.

This module must not know the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

Period = Literal["daily", "weekly"]
LENGTHS: Final[dict[Period, timedelta]] = {"daily": timedelta(days=1), "weekly": timedelta(days=7)}
# Of one project, and of one mail: what goes beyond is counted.
MOST_FINDINGS: Final = 10
MOST_PROJECTS: Final = 20


@dataclass(frozen=True, slots=True)
class Window:
    """What a digest tells of: what happened after `since` and up to `until`, and what will up to `ahead`."""

    since: datetime
    until: datetime
    ahead: datetime


@dataclass(frozen=True, slots=True)
class NamedFinding:
    """A finding as a mail names it. `until` is the end of its acceptance, where that is what is told."""

    fingerprint: str
    rule: str
    name: str
    severity: str
    path: str
    line: int
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one project of which the same is told: how many, and the gravest by name."""

    kind: str
    count: int
    named: tuple[NamedFinding, ...]


@dataclass(frozen=True, slots=True)
class ProjectNews:
    """What there is to tell of one project; groups without findings are left out."""

    project_id: str
    name: str
    groups: tuple[Group, ...]


class Section(BaseModel):
    """What a mail tells of one project, as text that can be looked at safely."""

    model_config = ConfigDict(frozen=True)

    project_id: str
    name: str
    text: str


class Digest(BaseModel):
    """A mail before it is addressed. `further`: so many projects more have something to tell."""

    model_config = ConfigDict(frozen=True)

    period: Period
    since: datetime
    until: datetime
    sections: tuple[Section, ...]
    further: int


@dataclass(frozen=True, slots=True)
class DigestChoice:
    """What somebody chose, and what can be chosen: nothing without an address, or where no mail is sent."""

    period: Period | None
    next_at: datetime | None
    address: str | None
    mail_is_sent: bool


def next_due(due_at: datetime, period: Period, now: datetime) -> datetime:
    """The first moment after `now` at which it is the turn of a digest that was due: the hour of the day stays."""
    length = LENGTHS[period]
    return due_at + length * ((now - due_at) // length + 1)


def shares(counts: tuple[int, ...], most: int) -> tuple[int, ...]:
    """How many of each group are named if no more than `most` are: each in turn gets one more, the first ones first."""
    given = [0] * len(counts)
    while most and any(had < count for had, count in zip(given, counts, strict=True)):
        for number, count in enumerate(counts):
            if most and given[number] < count:
                given[number] += 1
                most -= 1
    return tuple(given)
