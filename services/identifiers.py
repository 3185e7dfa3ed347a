"""Identifiers that sort by time and can't be guessed.

55 bits of microseconds and 80 random bits, written in 27 characters of Crockford's base 32. Within one process they
only ever grow, so that rows made together keep their order; sorting by id is sorting by creation, which is what cursors
page over. This module must not know any table.
"""

from __future__ import annotations

import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 27

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A fresh identifier: 27 lower-case characters, 80 random bits, greater than the one before."""
    global _last  # noqa: PLW0603 - the clock of this process, guarded by the lock
    with _lock:
        _last = max(_last + 1, time.time_ns() // 1_000)
        moment = _last
    number = moment << 80 | secrets.randbits(80)
    return "".join(ALPHABET[number >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))
