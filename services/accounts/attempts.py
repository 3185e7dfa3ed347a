"""Slows down guessing: failed attempts to sign in close the way for a while, longer each time.

They are counted by name, known or not, and by address. An attempt is counted before it is judged, so that many at once
are as slow as one after the other; one that succeeds is taken back. Somebody else's guessing can keep a person out, but
for no more than five minutes at a time. Failures are forgotten by halves, so that what is mistyped over months at an
address of many people never adds up. This module must not know passwords.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final

from services.accounts import user_repository as repository
from services.accounts.errors import TooManyAttemptsError
from services.database import Database
from services.database.base import utc_now

FORGET_AFTER: Final = timedelta(days=1)
# Of the thirty free failures of an address, an hour gives back fifteen: more than an office mistypes, and of no use to
# whoever guesses.
HALVED_AFTER: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Bound:
    """So many failures are free; each further one closes the way, twice as long as the one before, up to `longest`."""

    free: int
    longest: timedelta

    def pause(self, failures: int) -> timedelta | None:
        over = failures - self.free
        return None if over <= 0 else min(timedelta(seconds=2 ** min(over, 20)), self.longest)


_BY_NAME: Final = _Bound(free=5, longest=timedelta(minutes=5))
# Many people may share an address; whoever tries many names from one is held up all the same.
_BY_ADDRESS: Final = _Bound(free=30, longest=timedelta(minutes=15))


class Attempts:
    """The counters of one attempt: `open` before it is judged, `succeeded` if it was right."""

    def __init__(self, database: Database, *, name: str, address: str | None) -> None:
        self._database = database
        # In one order, so that two attempts never wait for each other.
        self._keys = [(f"name:{sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}", _BY_NAME)]
        if address is not None:
            self._keys.insert(0, (f"address:{_network(address)}", _BY_ADDRESS))

    def open(self) -> None:
        """Count the attempt. Raises `TooManyAttemptsError` while the way is closed; that is not counted."""
        now = utc_now()
        with self._database.unit_of_work() as uow:
            repository.forget_attempts(uow.session, now - FORGET_AFTER)
            rows = [(repository.attempts(uow.session, key), bound) for key, bound in self._keys]
            for row, bound in rows:
                if row.closed_until is not None and row.closed_until > now:
                    raise TooManyAttemptsError(
                        "signing in failed too often: wait before you try again",
                        limit="sign_in_attempts",
                        allowed=bound.free,
                        used=row.failures,
                        retry_after_s=(row.closed_until - now).total_seconds(),
                    )
            for row, bound in rows:
                # By whole hours, and what is left of one counts on: attempts in between don't stop the clock.
                halvings = max(0, (now - row.last_at) // HALVED_AFTER)
                row.failures >>= halvings
                row.last_at = row.last_at + halvings * HALVED_AFTER if row.failures else now
                row.failures += 1
                pause = bound.pause(row.failures)
                row.closed_until = None if pause is None else now + pause

    def succeeded(self) -> None:
        """The attempt was right: the name starts afresh, and the address is no worse than before."""
        with self._database.unit_of_work() as uow:
            for key, bound in self._keys:
                row = repository.attempts(uow.session, key)
                row.failures = 0 if bound is _BY_NAME else max(0, row.failures - 1)
                row.closed_until = None


def _network(address: str) -> str:
    """An IPv4 address, or the /64 that one subscriber of IPv6 has for himself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
