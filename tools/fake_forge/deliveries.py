"""Sends webhooks over HTTP and remembers them. Knows nothing of their content; signatures come from the caller."""

from __future__ import annotations

import hashlib
import hmac
import queue
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import httpx

from tools.fake_forge.clock import Clock

PATIENCE_S = 10.0  # GitHub gives up on a receiver after ten seconds


@dataclass(frozen=True)
class Delivery:
    """One sending of one webhook. `status` is the receiver's, 0 if it could not be reached or there is none."""

    id: int
    guid: str
    event: str
    action: str | None
    headers: Mapping[str, str | bytes] = field(repr=False)
    body: bytes = field(repr=False)
    at: datetime
    status: int
    response: str
    duration: float
    redelivery: bool = False
    installation: int | None = None
    repository: int | None = None


def github_signature(secret: str, body: bytes) -> str:
    """`X-Hub-Signature-256`: HMAC-SHA256 over the raw bytes."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


@cache
def _tls() -> ssl.SSLContext:
    """One for the process: reading the authorities takes 40 ms."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class Parcel:
    """One webhook, ready to be sent."""

    guid: str
    event: str
    action: str | None
    headers: Mapping[str, str | bytes]
    body: bytes
    redelivery: bool = False
    installation: int | None = None
    repository: int | None = None

    @classmethod
    def again(cls, delivery: Delivery) -> Parcel:
        """The same bytes under the same GUID."""
        told = {name: getattr(delivery, name) for name in ("guid", "event", "action", "headers", "body")}
        return cls(**told, redelivery=True, installation=delivery.installation, repository=delivery.repository)


class Courier:
    """Sends to one address: `send` at once, `put` at the end of `acting`, `post` by a thread, in order."""

    def __init__(self, clock: Clock, first_id: int) -> None:
        self.url: str | None = None
        self.log: list[Delivery] = []
        self._clock = clock
        self._next_id = first_id
        self._lock = threading.Lock()
        self._client = httpx.Client(timeout=PATIENCE_S, verify=_tls())
        self._queue: queue.Queue[Parcel | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._waiting: list[Parcel] = []
        self._depth = 0

    def send(self, parcel: Parcel) -> Delivery:
        """Send now, and return what came of it."""
        began = time.monotonic()
        status, response = 0, "no address is set"
        if self.url is not None:
            try:
                answer = self._client.post(self.url, content=parcel.body, headers=dict(parcel.headers))  # type: ignore[arg-type]
                status, response = answer.status_code, answer.text
            except httpx.HTTPError as error:
                response = f"{type(error).__name__}: {error}"
        with self._lock:
            delivery = Delivery(
                id=self._next_id,
                guid=parcel.guid,
                event=parcel.event,
                action=parcel.action,
                headers=parcel.headers,
                body=parcel.body,
                at=self._clock.now(),
                status=status,
                response=response,
                duration=round(time.monotonic() - began, 2),
                redelivery=parcel.redelivery,
                installation=parcel.installation,
                repository=parcel.repository,
            )
            self._next_id += 1
            self.log.append(delivery)
        return delivery

    def post(self, parcel: Parcel) -> None:
        """Send soon: for what an answer to the receiver itself brings about, while that one waits for the answer."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._queue.put(parcel)

    def settle(self) -> None:
        """Return when everything posted has been sent."""
        self._queue.join()

    @contextmanager
    def acting(self, lock: threading.RLock) -> Iterator[None]:
        """Hold a lock, and send what was put in meanwhile after letting go of it: a receiver may well ask back."""
        with lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            parcels = []
            if self._depth == 0:
                parcels, self._waiting = self._waiting, []
        for parcel in parcels:
            self.send(parcel)

    def put(self, parcel: Parcel) -> None:
        """Have it sent when what is going on has been done."""
        self._waiting.append(parcel)

    def close(self) -> None:
        """Send what is left, and stop."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._client.close()

    def _work(self) -> None:
        while (parcel := self._queue.get()) is not None:
            try:
                self.send(parcel)
            finally:
                self._queue.task_done()
        self._queue.task_done()
