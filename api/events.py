"""Server-sent events of one analysis: its state whenever it changed, until it has ended.

A state is complete in itself, so that a client that lost the stream misses nothing by taking it up again: it sends the
id of the last state it saw, and gets the present one only if that differs. The database is asked once a second a
stream; a comment every few seconds keeps proxies from closing a silent connection.

A stream holds no thread: it borrows one for as long as a look takes. What it does hold is bounded, a caller's number of
streams and that of the whole process, and each is ended after a while, so that one whose client is gone without a word
does not stay for ever. Clients take it up again by themselves.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.schemas import AnalysisOut
from services.limits import LimitReachedError
from services.settings import Settings

POLL_S = 1.0
HEARTBEAT_S = 10.0
# A browser whose stream broke waits that long before it takes it up again.
_RETRY_MS: Final = 2_000
# Streams end with their analyses, and after `stream_life`: a client that found all taken looks again soon.
_LOOK_AGAIN_S: Final = 15.0

# Of each event of the stream.
EVENT_SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"enum": ["progress", "finished"]},
        "id": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/AnalysisOut"},
        },
    },
}

Look = Callable[[], Awaitable[tuple[AnalysisOut, bool]]]


async def stream(
    look: Look,
    *,
    last_event_id: str | None,
    life_s: float,
    poll_s: float = POLL_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncIterator[str]:
    """The events. `look` gives the present state and whether the analysis has ended.

    After `life_s` seconds the stream ends, with the time after which to take it up again; `finished` was not said then.
    """
    yield f"retry: {_RETRY_MS}\n\n"
    until = time.monotonic() + life_s
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
        if time.monotonic() >= until:
            yield f": take this stream up again\nretry: {_RETRY_MS}\n\n"
            return
        if silence >= heartbeat_s:
            yield ": still here\n\n"
            silence = 0.0
        await asyncio.sleep(poll_s)
        silence += poll_s


class Streams:
    """The streams that one process keeps open, by caller."""

    def __init__(self, settings: Settings) -> None:
        self._of_caller = settings.streams_of_caller
        self._of_all = settings.streams
        self._life_s = settings.stream_life.total_seconds()
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def respond(self, caller: str, look: Look, *, last_event_id: str | None) -> StreamingResponse:
        """The answer that streams. Raises `LimitReachedError` if the caller, or the process, has too many."""
        self._take(caller)
        events = stream(look, last_event_id=last_event_id, life_s=self._life_s)
        return _Held(events, lambda: self._give_back(caller))

    @property
    def open(self) -> int:
        """How many are open now."""
        with self._lock:
            return self._open.total()

    def _take(self, caller: str) -> None:
        with self._lock:
            for limit, allowed, used, whose in (
                ("streams_of_caller", self._of_caller, self._open[caller], "this caller"),
                ("streams", self._of_all, self._open.total(), "this server"),
            ):
                if used >= allowed:
                    raise LimitReachedError(
                        f"{whose} has {used:,} streams of events open, and {allowed:,} are allowed: end one, or wait "
                        "until one has ended; the analysis itself can be asked for at any time",
                        limit=limit,
                        allowed=allowed,
                        used=used,
                        retry_after_s=_LOOK_AGAIN_S,
                    )
            self._open[caller] += 1

    def _give_back(self, caller: str) -> None:
        with self._lock:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


class _Held(StreamingResponse):
    """Gives its place back however it ends: said to the end, broken off by the client, or failed."""

    def __init__(self, events: AsyncIterator[str], give_back: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


def get_streams(request: Request) -> Streams:
    """The streams of the application that a request came to."""
    streams = request.app.state.streams
    assert isinstance(streams, Streams)
    return streams


StreamsDependency = Annotated[Streams, Depends(get_streams)]
