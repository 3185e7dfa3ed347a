"""What holds for every request, before and around the routes: a bounded body, headers, an answer to every failure.

Plain ASGI, because the body must be counted while it comes in and streams must not be buffered.
"""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import BodyTooLargeError
from api.problems import from_error, unexpected
from services.limits import LimitReachedError, Rates

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """Adds the headers that keep a browser strict; a route may set its own and keep it."""

    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self._app = app
        self._headers = dict(_HEADERS)
        if https:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuses a body that is too large: by its announced length at once, else as soon as it has grown beyond.

    The refusal is an exception out of `receive`, so that whoever reads the body stops there.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._limit:
            await from_error(None, self._error())(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._limit:
                    raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"a request body may have {self._limit:,} bytes", limit=self._limit)


class RequestRate:
    """Refuses a caller that asks too often, before its token or session costs a look into the database.

    A caller is what it shows: the text of its bearer token, else its session cookie, whether they are good or not;
    only a digest is kept. Who shows neither gets at public pages only, and is not counted: behind a proxy all of them
    have one address.
    """

    def __init__(self, app: ASGIApp, *, rates: Rates, cookie: str) -> None:
        self._app = app
        self._rates = rates
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._caller(scope) if scope["type"] == "http" else None
        if caller is not None:
            try:
                self._rates.take(caller)
            except LimitReachedError as error:
                await from_error(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> str | None:
        request = Request(scope)
        # The scheme is written in any case and with any number of blanks: the token is what comes last.
        words = request.headers.get("authorization", "").split()
        shown = words[-1] if words else request.cookies.get(self._cookie)
        return None if shown is None else hashlib.sha256(shown.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class ErrorBoundary:
    """Answers what no handler caught. An answer that has begun can only be cut off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noticing(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noticing)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await unexpected(Request(scope), error)(scope, receive, send)
