"""The forge's clock: tests move it, nobody sleeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """The machine's time plus what it was advanced by, or a time at which it stands still."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._frozen: datetime | None = None

    def now(self) -> datetime:
        """The time of the forge, in whole seconds as forges tell it."""
        return (self._frozen or datetime.now(UTC)).replace(microsecond=0) + self._ahead

    def advance(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move on by that much (back, if it is negative)."""
        self._ahead += timedelta(hours=hours, minutes=minutes, seconds=seconds)

    def freeze(self, at: datetime | None = None) -> None:
        """Stand still at `at`, or at this moment, until `thaw`; `advance` still moves it."""
        self._frozen, self._ahead = at or self.now(), timedelta()

    def thaw(self) -> None:
        """Run with the machine's time again, from the machine's present."""
        self._frozen, self._ahead = None, timedelta()


def stamp(moment: datetime) -> str:
    """As GitHub writes times: `2026-11-30T16:22:34Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
