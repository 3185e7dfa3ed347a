"""Ends the work on a file from outside when its time is over, whatever it is doing.

Rules look at the clock where their work grows with the file, but one that forgets to, or a loop over a hostile file
that nobody thought of, would outlast every limit (measured: 144 s instead of 20 on 14 kB of nested loops). Only the
main thread of a process can be interrupted so, and only where nobody else waits for this signal; elsewhere the rules'
own looks at the clock have to do. This module must not know files or rules.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# The signal comes again until the work ends: what it raises may be taken for another, smaller question's limit.
_SECONDS_BETWEEN = 0.5


@contextmanager
def interrupted_after(seconds: float, error: type[Exception]) -> Iterator[None]:
    """Raises `error` in what stands below when that takes longer than `seconds`."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    is_over = False

    def ring(_signal: int, _frame: object) -> None:
        if not is_over:
            raise error

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SECONDS_BETWEEN), _SECONDS_BETWEEN)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
