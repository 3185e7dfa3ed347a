"""Trying again while the database is away.

A restarted PostgreSQL ends every connection and refuses new ones for some seconds: a worker with results in hand waits
for it instead of throwing them away. All writes of a worker may be repeated safely (they are fenced and conditional).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


def patiently(operation: Callable[[], T], *, patience_s: float, given_up: Callable[[], bool] = lambda: False) -> T:
    """The result of `operation`, tried again for `patience_s` seconds while the database can't be reached.

    Raises the last error when the patience is over or `given_up()` says that nobody waits any more.
    """
    deadline = time.monotonic() + patience_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return operation()
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() >= deadline or given_up():
                raise
            log.warning("database_away", error=str(error.orig), again_in_s=pause)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
