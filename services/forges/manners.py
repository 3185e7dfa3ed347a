"""How often a forge may be asked: a second between writes, and silence for as long as it asked for it.

One `Manners` belongs to one installation and outlives the clients that use it. Whoever goes on asking while a limit
lasts makes it longer and may be banned, so nothing is sent before it ends. Other processes learn of a limit from
`RateLimitedError.retry_at`, which the caller keeps. This module must not know HTTP.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Final

from services.forges.clocks import Clock
from services.forges.errors import RateLimitedError

# GitHub asks for a second between requests that write, and allows 80 a minute.
BETWEEN_WRITES: Final = timedelta(seconds=1)
# Without a Retry-After GitHub asks for at least a minute, longer each time.
_FIRST_PATIENCE: Final = timedelta(seconds=60)
_LONGEST_PATIENCE: Final = timedelta(hours=1)


class Manners:
    """What one installation owes its forge."""

    def __init__(self, clock: Clock, *, between_writes: timedelta = BETWEEN_WRITES) -> None:
        self._clock = clock
        self._between_writes = between_writes
        self._lock = threading.Lock()
        self._last_write: datetime | None = None
        self._limit: RateLimitedError | None = None
        self._limits_in_a_row = 0

    def before(self, *, is_write: bool) -> None:
        """Wait until a write is due. Raises `RateLimitedError` while a limit lasts: nothing may be sent."""
        with self._lock:
            now = self._clock.now()
            if self._limit is not None and now < self._limit.retry_at:
                raise RateLimitedError(
                    self._limit.message, retry_at=self._limit.retry_at, secondary=self._limit.secondary
                )
            if not is_write:
                return
            wait = timedelta(0)
            if self._last_write is not None:
                # A clock that was put back must not make us wait for hours.
                wait = min(self._last_write + self._between_writes - now, self._between_writes)
            if wait > timedelta(0):
                self._clock.sleep(wait.total_seconds())

    def wrote(self) -> None:
        """A write was sent, however it ended."""
        with self._lock:
            self._last_write = self._clock.now()

    def succeeded(self) -> None:
        """The forge answers again."""
        with self._lock:
            self._limit = None
            self._limits_in_a_row = 0

    def limited(self, error: RateLimitedError) -> None:
        """The forge asked for silence."""
        with self._lock:
            self._limit = error
            self._limits_in_a_row += 1

    def patience(self) -> timedelta:
        """How long to be silent when the forge doesn't say: a minute, twice as long each time, an hour at most."""
        with self._lock:
            doubled = _FIRST_PATIENCE * (1 << min(self._limits_in_a_row, 6))
            return min(doubled, _LONGEST_PATIENCE)
