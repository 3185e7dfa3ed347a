"""One GitLab, with the token of the account that we write as. What must outlive a task lives here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from ssl import SSLContext
from urllib.parse import urlsplit

import httpx

from services.forges.clocks import Clock, SystemClock
from services.forges.errors import ForgeAuthenticationError
from services.forges.gitlab.client import GitlabClient, whoami
from services.forges.gitlab.refusals import GitlabDialect
from services.forges.manners import Manners
from services.forges.transport import KeptAnswers, Transport, TransportOptions
from services.forges.values import Person


@dataclass(frozen=True, slots=True)
class GitlabSettings:
    """Which GitLab, and a token with the scope `api` and the role Developer in each project.

    `verify` is a context with the authority of an own server, or True.
    """

    token: str = field(repr=False)
    web_url: str = "https://gitlab.com"
    verify: SSLContext | bool = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.web_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise ForgeAuthenticationError("web_url of GitLab is no address: https://host, with no name or query")
        if not self.token:
            raise ForgeAuthenticationError("the token of GitLab is empty")

    @property
    def api_url(self) -> str:
        """Where REST is."""
        return f"{self.web_url.rstrip('/')}/api/v4"


class _FixedToken:
    def __init__(self, token: str) -> None:
        self._token = token

    def header(self) -> str:
        return f"Bearer {self._token}"

    def renew(self) -> bool:
        """Only an operator can give another one."""
        return False


class GitlabForge:
    """Hands out clients for one GitLab. Safe to share between threads."""

    def __init__(self, settings: GitlabSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._manners = Manners(self._clock)
        self._kept = KeptAnswers()
        self._lock = threading.Lock()
        self._us: Person | None = None
        # Reading the authorities takes 40 ms: once, not for each client.
        self._trust = httpx.create_ssl_context(settings.verify)

    def client(self) -> GitlabClient:
        """A client; close it after use."""
        transport = self._transport()
        return GitlabClient(
            transport,
            token=lambda: self._settings.token,
            web_url=self._settings.web_url.rstrip("/"),
            us=lambda: self._asked(transport),
        )

    def _asked(self, transport: Transport) -> Person:
        with self._lock:
            if self._us is None:
                self._us = whoami(transport)
            return self._us

    def _transport(self) -> Transport:
        return Transport(
            TransportOptions(base_url=self._settings.api_url, verify=self._trust),
            credentials=_FixedToken(self._settings.token),
            dialect=GitlabDialect(),
            clock=self._clock,
            manners=self._manners,
            kept=self._kept,
        )
