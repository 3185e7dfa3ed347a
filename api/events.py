"""Server-sent events of one analysis: its state whenever it changed, until it has ended.

A state is complete in itself, so that a client that lost the stream misses nothing by taking it up again: it sends the
id of the last state it saw, and gets the present one only if that differs. The database is asked once a second a
stream; a comment every few seconds keeps proxies from closing a silent connection.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

from api.schemas import AnalysisOut

POLL_S = 1.0
HEARTBEAT_S = 10.0
# A browser whose stream broke waits that long before it takes it up again.
_RETRY_MS = 2_000

Look = Callable[[], Awaitable[tuple[AnalysisOut, bool]]]


async def stream(
    look: Look, *, last_event_id: str | None, poll_s: float = POLL_S, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[str]:
    """The events. `look` gives the present state and whether the analysis has ended."""
    yield f"retry: {_RETRY_MS}\n\n"
    seen = last_event_id
    silence = 0.0
    while True:
        state, ended = await look()
        body = state.model_dump_json()
        identity = hashlib.sha256(body.encode()).hexdigest()[:16]
        if identity != seen or ended:
            yield f"event: {'finished' if ended else 'progress'}\nid: {identity}\ndata: {body}\n\n"
            seen = identity
            silence = 0.0
        if ended:
            return
        if silence >= heartbeat_s:
            yield ": still here\n\n"
            silence = 0.0
        await asyncio.sleep(poll_s)
        silence += poll_s
