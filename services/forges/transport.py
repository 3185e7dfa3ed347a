"""Requests to one forge over HTTP: bounded, on one host, repeated only where that is safe.

What it promises: an answer is read to a bound and by a deadline; no redirect and no next page leads to another host
with our credential; a read is conditional where the forge gave an ETag and is repeated on failures of the forge; a
write is sent once, and if nobody knows what became of it, that is said. No credential gets into an error.
This module must not know what is asked, nor which forge it is: a `Dialect` tells what a refusal means.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ssl import SSLContext
from typing import Final, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from services.forges.clocks import Clock
from services.forges.errors import (
    ForgeAuthenticationError,
    ForgeError,
    ForgeUnavailableError,
    RateLimitedError,
    UnreadableAnswerError,
)
from services.forges.manners import Manners
from services.forges.redaction import redacted
from services.reports.untrusted import one_line, shorten
from services.version import version

Query = Mapping[str, str | int]
_Model = TypeVar("_Model", bound=BaseModel)

# 100 files of a pull request with their patches are some 3 MB.
_LARGEST_ANSWER: Final = 16 * 2**20
_DEADLINE_S: Final = 120.0
_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0, pool=5.0)
_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 1.0
_MOST_REDIRECTS: Final = 3
_MOST_PAGES: Final = 100
_KEPT_ANSWERS: Final = 128
_KEPT_BYTES: Final = 2**20  # of each installation, of which a process keeps some hundred
_UNAUTHORIZED: Final = 401
_NOT_MODIFIED: Final = 304
_FORGE_FAILED: Final = 500
_REFUSED: Final = 400
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_LONGEST_SAYING: Final = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whole. `next_url` is the next page, already known to be on our host.

    A write whose answer can't be read has been carried out all the same: its outcome is unknown.
    """

    status: int
    headers: httpx.Headers
    content: bytes
    next_url: str | None = None
    is_write: bool = False

    def data(self) -> object:
        """The JSON in it. Raises `UnreadableAnswerError`."""
        try:
            value: object = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise UnreadableAnswerError("the forge's answer is not JSON", outcome_unknown=self.is_write) from error
        return value

    def one(self, model: type[_Model]) -> _Model:
        """The object in it. Raises `UnreadableAnswerError`."""
        return validated(model, self.data(), is_write=self.is_write)

    def many(self, model: type[_Model]) -> list[_Model]:
        """The list in it. Raises `UnreadableAnswerError`."""
        value = self.data()
        if not isinstance(value, list):
            raise UnreadableAnswerError("the forge's answer is no list", outcome_unknown=self.is_write)
        return [validated(model, item, is_write=self.is_write) for item in value]

    def saying(self) -> str:
        """What the forge says for itself, cleaned and cut: its `message`, `error` or the text."""
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError):
            return ""
        said = ""
        if isinstance(value, dict):
            said = next((str(value[key]) for key in ("message", "error_description", "error") if value.get(key)), "")
        return clean(said)


def validated(model: type[_Model], value: object, *, is_write: bool = False) -> _Model:
    """The value in our shape. Raises `UnreadableAnswerError` that names the place, never the content."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UnreadableAnswerError(
            f"the forge's answer has another shape than expected: {place}: {first['msg']}", outcome_unknown=is_write
        ) from None


def clean(text: str) -> str:
    """What a forge said, fit for a message: one line, short, without credentials or steering characters."""
    return shorten(one_line(redacted(text)), _LONGEST_SAYING)


class Credentials(Protocol):
    """What goes into `Authorization`."""

    def header(self) -> str:
        """The value of the header. Raises `ForgeError`."""
        ...

    def renew(self) -> bool:
        """Forget what was refused with 401; whether there can be another."""
        ...


class Dialect(Protocol):
    """How one forge says no."""

    def refusal(self, answer: Answer, *, clock: Clock, patience: timedelta) -> ForgeError:
        """The error that a 4xx means. `patience`: how long to wait if it is a limit that names no time."""
        ...


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """`base_url` without a slash at its end; `verify` as httpx takes it (True, or a context of an own authority)."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    verify: SSLContext | bool = True
    largest_answer: int = _LARGEST_ANSWER
    deadline_s: float = _DEADLINE_S
    timeout: httpx.Timeout = field(default_factory=lambda: _TIMEOUT)


class KeptAnswers:
    """Answers to be asked for with `If-None-Match`: bounded, the longest unused goes first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, url: str) -> Answer | None:
        """The answer that is kept for an address."""
        with self._lock:
            if url in self._answers:
                self._answers.move_to_end(url)
            return self._answers.get(url)

    def keep(self, url: str, answer: Answer) -> None:
        """Keep an answer that has an ETag."""
        if "etag" not in answer.headers or len(answer.content) > _KEPT_BYTES // 4:
            return
        with self._lock:
            self._drop(url)
            self._answers[url] = answer
            self._bytes += len(answer.content)
            while self._bytes > _KEPT_BYTES or len(self._answers) > _KEPT_ANSWERS:
                self._drop(next(iter(self._answers)))

    def _drop(self, url: str) -> None:
        dropped = self._answers.pop(url, None)
        self._bytes -= len(dropped.content) if dropped is not None else 0


class Transport:
    """Requests to one forge, with one credential."""

    def __init__(
        self,
        options: TransportOptions,
        *,
        credentials: Credentials,
        dialect: Dialect,
        clock: Clock,
        manners: Manners,
        kept: KeptAnswers | None = None,
    ) -> None:
        self._options = options
        self._credentials = credentials
        self._dialect = dialect
        self._clock = clock
        self._manners = manners
        self._kept = kept or KeptAnswers()
        self._base = urlsplit(options.base_url)
        self._client = httpx.Client(
            headers={"User-Agent": f"gradproof/{version()}", **options.headers},
            timeout=options.timeout,
            verify=options.verify,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def get(self, path: str, query: Query | None = None) -> Answer:
        """Read, conditionally and with repetitions. Raises `ForgeError`."""
        return self._repeated("GET", self._address(path, query), None)

    def pages(self, path: str, query: Query | None = None, *, most: int = _MOST_PAGES) -> Iterator[Answer]:
        """Read a list page by page, by the links that the forge gives. Raises `ForgeError`."""
        address: str | None = self._address(path, {"per_page": 100, **(query or {})})
        for _ in range(most):
            if address is None:
                return
            answer = self._repeated("GET", address, None)
            yield answer
            address = answer.next_url
        if address is not None:
            raise UnreadableAnswerError(f"the list has more than {most} pages", outcome_unknown=False)

    def ask(self, path: str, payload: object) -> Answer:
        """Read by POST (GraphQL), with repetitions. Raises `ForgeError`."""
        return self._repeated("POST", self._address(path, None), payload)

    def write(self, method: str, path: str, payload: object = None) -> Answer:
        """Write, once. Raises `ForgeError`; `ForgeUnavailableError.outcome_unknown` says whether it may be there."""
        return self._checked(method, self._address(path, None), payload, is_write=True)

    def _address(self, path: str, query: Query | None) -> str:
        """An absolute address; a path that is one already has to be on our host."""
        url = path if "://" in path else self._options.base_url + path
        self._on_our_host(url)
        return (
            str(httpx.URL(url).copy_merge_params({key: str(value) for key, value in query.items()})) if query else url
        )

    def _on_our_host(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            ours = (parts.scheme, parts.hostname, parts.port) == (
                self._base.scheme,
                self._base.hostname,
                self._base.port,
            )
            ours = ours and parts.username is None and parts.password is None
        except ValueError:
            ours = False
        if not ours:
            raise UnreadableAnswerError(f"the forge leads to another host: {clean(url)}", outcome_unknown=False)

    def _joined(self, url: str, target: str) -> str:
        try:
            joined = urljoin(url, target)
        except ValueError:
            joined = target
        self._on_our_host(joined)
        return joined

    def _repeated(self, method: str, url: str, payload: object) -> Answer:
        pause = _FIRST_PAUSE_S
        for left in reversed(range(_TRIES)):
            try:
                return self._checked(method, url, payload, is_write=False)
            except UnreadableAnswerError:
                raise
            except ForgeUnavailableError:
                if not left:
                    raise
            self._clock.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _checked(self, method: str, url: str, payload: object, *, is_write: bool) -> Answer:
        answer = self._sent(method, url, payload, is_write=is_write)
        if answer.status == _UNAUTHORIZED and self._credentials.renew():  # refused at the door: nothing was done
            answer = self._sent(method, url, payload, is_write=is_write)
        if answer.status >= _FORGE_FAILED:
            raise ForgeUnavailableError(
                f"the forge answers {answer.status}{_quoted(answer.saying())}", outcome_unknown=is_write
            )
        if answer.status == _UNAUTHORIZED:
            raise ForgeAuthenticationError(f"the forge does not take our credential{_quoted(answer.saying())}")
        if answer.status >= _REFUSED:
            error = self._dialect.refusal(answer, clock=self._clock, patience=self._manners.patience())
            if isinstance(error, RateLimitedError):
                self._manners.limited(error)
            raise error
        if not httpx.codes.is_success(answer.status):
            raise UnreadableAnswerError(f"the forge answers {answer.status}", outcome_unknown=is_write)
        self._manners.succeeded()
        return answer

    def _sent(self, method: str, url: str, payload: object, *, is_write: bool) -> Answer:
        """The answer, after redirects on the same host: a server that redirects has done nothing yet."""
        for _ in range(_MOST_REDIRECTS + 1):
            self._manners.before(is_write=is_write)
            try:
                answer = self._exchanged(method, url, payload, is_write=is_write)
            finally:
                if is_write:
                    self._manners.wrote()
            if answer.status not in _REDIRECTS or "location" not in answer.headers:
                return answer
            url = self._joined(url, answer.headers["location"])
        raise UnreadableAnswerError("the forge redirects in circles", outcome_unknown=False)

    def _exchanged(self, method: str, url: str, payload: object, *, is_write: bool) -> Answer:
        kept = self._kept.get(url) if method == "GET" else None
        headers = {"Authorization": self._credentials.header()}
        if kept is not None:
            headers["If-None-Match"] = kept.headers["etag"]
        request = self._client.build_request(method, url, headers=headers, json=payload)
        try:
            answer = self._read(request, is_write=is_write)
        except _NOT_SENT as error:
            raise _unavailable(error, outcome_unknown=False) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _unavailable(error, outcome_unknown=is_write) from None
        except ForgeUnavailableError as error:
            raise type(error)(error.message, outcome_unknown=is_write) from None
        if answer.status == _NOT_MODIFIED and kept is not None:
            return kept
        if method == "GET" and answer.status == httpx.codes.OK:
            self._kept.keep(url, answer)
        return answer

    def _read(self, request: httpx.Request, *, is_write: bool) -> Answer:
        ends = time.monotonic() + self._options.deadline_s
        response = self._client.send(request, stream=True)
        try:
            content = bytearray()
            for part in response.iter_bytes():
                content += part
                if len(content) > self._options.largest_answer:
                    raise UnreadableAnswerError(
                        f"the forge's answer has more than {self._options.largest_answer:,} bytes",
                        outcome_unknown=False,
                    )
                if time.monotonic() > ends:
                    raise ForgeUnavailableError(
                        f"the forge's answer takes more than {self._options.deadline_s:g} s", outcome_unknown=False
                    )
        finally:
            response.close()
        following = self._next(response, str(request.url))
        return Answer(response.status_code, response.headers, bytes(content), following, is_write)

    def _next(self, response: httpx.Response, url: str) -> str | None:
        found = response.links.get("next", {}).get("url")
        if not found:
            return None
        following = self._joined(url, found)
        if following == url:
            raise UnreadableAnswerError("the forge gives a page as its own next", outcome_unknown=False)
        return following


def _unavailable(error: Exception, *, outcome_unknown: bool) -> ForgeUnavailableError:
    said = clean(str(error)) or "no answer"
    return ForgeUnavailableError(
        f"the forge can't be reached: {type(error).__name__}: {said}", outcome_unknown=outcome_unknown
    )


def _quoted(saying: str) -> str:
    return f": {saying}" if saying else ""


def strings(value: object) -> tuple[str, ...]:
    """The texts in a nested value, in order: what a forge gives as the reasons of a refusal, cleaned."""
    found: list[str] = []
    waiting: list[object] = [value]
    while waiting and len(found) < 20:
        item = waiting.pop(0)
        if isinstance(item, dict):
            waiting[:0] = list(item.values())
        elif isinstance(item, list):
            waiting[:0] = item
        elif isinstance(item, str) and item.strip():
            found.append(clean(item))
    return tuple(found)
