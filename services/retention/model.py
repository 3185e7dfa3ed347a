"""The values of retention: what is to be kept, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from services.settings import Settings


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long ended analyses are kept (None: for ever), and how many of a project (0: all)."""

    age: timedelta | None
    number: int

    @classmethod
    def by(cls, settings: Settings) -> Self:
        """What the settings ask for."""
        return cls(timedelta(days=settings.retention) if settings.retention else None, settings.kept_analyses)

    @property
    def everything(self) -> bool:
        """Whether no analysis is ever dropped."""
        return self.age is None and not self.number


@dataclass(frozen=True, slots=True)
class Dropped:
    """How much was dropped, or would be. `leftovers` are rows by what they were. `more`: there is more to drop."""

    analyses: int = 0
    snapshots: int = 0
    leftovers: dict[str, int] = field(default_factory=dict)
    more: bool = False
