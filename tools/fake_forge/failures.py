"""Everything that can go wrong between a client and a forge, to be switched on for the next requests that match."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

_DOCUMENTATION = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"


@dataclass(frozen=True)
class Failure:
    """How a request fails. `status` None cuts the connection without an answer.

    With `after` the request is carried out first: the client can't know. `remaining_is_zero` sets the headers of a
    used up primary limit. `body` is an answer other than GitHub's usual `message`, `text` one that is no JSON at all.
    """

    name: str
    status: int | None
    message: str = ""
    after: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    remaining_is_zero: bool = False
    documentation: str | None = None
    body: Any = None
    text: str | None = None


def primary_limit(status: Literal[403, 429] = 403) -> Failure:
    """The hourly limit is used up: `x-ratelimit-remaining: 0`, and `x-ratelimit-reset` says when it is whole again."""
    message = "API rate limit exceeded for installation ID 1. If you reach out to GitHub Support for help, …"
    return Failure("primary_limit", status, message, remaining_is_zero=True, documentation=_DOCUMENTATION)


def secondary_limit(retry_after: int | None = 60, status: Literal[403, 429] = 403) -> Failure:
    """Too much in too short a time. GitHub often, not always, says in `retry-after` when to come back."""
    message = (
        "You have exceeded a secondary rate limit. Please wait a few minutes before you try again. If you reach out to "
        "GitHub Support for help, …"
    )
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    documentation = f"{_DOCUMENTATION}#about-secondary-rate-limits"
    return Failure("secondary_limit", status, message, headers=headers, documentation=documentation)


def graphql_limit() -> Failure:
    """GraphQL's hourly limit is used up, which it says with 200."""
    message = {"type": "RATE_LIMITED", "message": "API rate limit already exceeded for installation ID 1."}
    return Failure("graphql_limit", 200, remaining_is_zero=True, body={"errors": [message]})


def gitlab_limit(retry_after: int = 60) -> Failure:
    """GitLab's limit, in plain text."""
    headers = {"retry-after": str(retry_after), "ratelimit-remaining": "0"}
    return Failure("gitlab_limit", 429, headers=headers, text="Retry later\n")


def server_error(status: int = 502) -> Failure:
    """The forge fails before it did anything."""
    return Failure(f"error_{status}", status, "Server Error", text=_page(status))


def error_after(status: int = 502) -> Failure:
    """The forge does what it was asked, and answers with an error."""
    return Failure(f"error_{status}_after", status, "Server Error", after=True, text=_page(status))


def _page(status: int) -> str | None:
    """What stands before the API answers these, and in HTML."""
    return f"<html>\n<h1>{status}</h1>\n<p>We're having a really bad day.</p>\n</html>\n" if status > 500 else None


def cut_before() -> Failure:
    """The connection is cut before anything was done."""
    return Failure("cut_before", None)


def cut_after() -> Failure:
    """The forge does what it was asked, and the connection is cut before the answer."""
    return Failure("cut_after", None, after=True)


def expired_token() -> Failure:
    """The token is refused, as after an hour or a change of permissions."""
    return Failure("expired_token", 401, "Bad credentials", documentation="https://docs.github.com/rest")


@dataclass(eq=False)
class Hold:
    """Keeps matching requests waiting until `release`: before they are carried out, or with `after` before they are
    answered. A slow forge without a sleep."""

    after: bool = False
    _reached: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def wait_reached(self, timeout: float = 20.0) -> None:
        """Return when the first request has come in. Raises `TimeoutError` if none does."""
        if not self._reached.wait(timeout):
            raise TimeoutError("no request came in that matches")

    def release(self) -> None:
        """Let the waiting requests go on."""
        self._released.set()

    def pass_through(self) -> None:
        """Called by the forge for a request that matches."""
        self._reached.set()
        self._released.wait()


@dataclass(eq=False)
class Switch:
    """A failure, or a hold, for the next `remaining` requests that match (None: for all)."""

    what: Failure | Hold
    method: str | None
    path: re.Pattern[str]
    remaining: int | None

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is one of them; counts it if so."""
        if self.remaining == 0 or self.method not in (None, method) or not self.path.search(path):
            return False
        if self.remaining is not None:
            self.remaining -= 1
        return True


class Switches:
    """All that are set, the oldest first. Has its own lock: a hold must not hold up the forge."""

    def __init__(self) -> None:
        self._all: list[Switch] = []
        self._lock = threading.Lock()

    def add(self, what: Failure | Hold, method: str | None, path: str, times: int | None) -> Switch:
        switch = Switch(what, method, re.compile(path), times)
        with self._lock:
            self._all.append(switch)
        return switch

    def take(self, method: str, path: str) -> Failure | Hold | None:
        """What is to happen to this request."""
        with self._lock:
            return next((switch.what for switch in self._all if switch.takes(method, path)), None)

    def clear(self) -> None:
        """Switch everything off, and let go of what is held."""
        with self._lock:
            held = [switch.what for switch in self._all if isinstance(switch.what, Hold)]
            self._all.clear()
        for hold in held:
            hold.release()
