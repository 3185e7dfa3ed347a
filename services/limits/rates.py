"""How many requests a minute one caller may make.

Counted in the memory of one process, on purpose. The limit is there so that a client in a loop can't keep a process
and its database busy; a shared count would cost a write for every read, and on SQLite each write waits for all others.
With several API processes behind a balancer a caller gets the rate of each of them. What matters across processes is
the work that is asked for, and that is counted in the database (`services.limits.quotas`).
This module must not know HTTP, nor who a caller is.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from services.limits.errors import LimitReachedError

# Callers that are remembered, the longest silent one forgotten first: 150 bytes each.
_REMEMBERED: Final = 10_000
_MINUTE_S: Final = 60.0


class Rates:
    """One allowance a caller: `rate` requests at once, which come back evenly over a minute. Safe for threads."""

    def __init__(self, rate: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        # What a caller had left, and when that was.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one request. Raises `LimitReachedError`, and counts nothing, if the caller has none left."""
        if not self._rate:
            return
        now = self._clock()
        with self._lock:
            left, since = self._left.pop(caller, (float(self._rate), now))
            left = min(float(self._rate), left + (now - since) * self._rate / _MINUTE_S)
            allowed = left >= 1
            self._left[caller] = (left - 1 if allowed else left, now)
            if len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)
        if not allowed:
            wait_s = (1 - left) * _MINUTE_S / self._rate
            raise LimitReachedError(
                f"the {self._rate:,} requests a minute that this caller may make are used up; the next one is taken in "
                f"{max(1, round(wait_s))} s",
                limit="request_rate",
                allowed=self._rate,
                used=self._rate,
                retry_after_s=wait_s,
            )
