"""The GitHub App: one for a deployment, it hands out a client for each installation.

What must outlive a task lives here: tokens, the pause between writes, a rate limit that lasts, answers with ETags.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from ssl import SSLContext
from typing import Final
from urllib.parse import quote, urlsplit

import httpx

from services.forges.clocks import Clock, SystemClock
from services.forges.errors import ForgeAuthenticationError, ForgeNotFoundError
from services.forges.github.client import GithubClient
from services.forges.github.models import AppAnswer, HookDelivery, Token
from services.forges.github.refusals import GithubDialect
from services.forges.github.tokens import AppKey, InstallationToken, token_request
from services.forges.manners import Manners
from services.forges.transport import KeptAnswers, Transport, TransportOptions
from services.forges.values import Person

API_HEADERS: Final[Mapping[str, str]] = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
}
# What a clone needs: the token of a clone goes to another process, and shall not be worth more than that.
_CLONE_PERMISSIONS: Final[Mapping[str, str]] = {"contents": "read"}
_KEPT_INSTALLATIONS: Final = 256
# 10,000 webhooks: more than three days bring to most, and a minute of reading.
_PAGES_OF_DELIVERIES: Final = 100


@dataclass(frozen=True, slots=True)
class GithubSettings:
    """Which application, where. For GitHub Enterprise: `https://host/api/v3` and `https://host`.

    `verify` is a context with the authority of an own server, or True.
    """

    app_id: str
    private_key: str = field(repr=False)
    api_url: str = "https://api.github.com"
    web_url: str = "https://github.com"
    verify: SSLContext | bool = True

    def __post_init__(self) -> None:
        for name, value in (("api_url", self.api_url), ("web_url", self.web_url)):
            parts = urlsplit(value)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
                raise ForgeAuthenticationError(f"{name} of GitHub is no address: https://host, with no name or query")

    @property
    def graphql_url(self) -> str:
        """Where GraphQL is: `/api/graphql` beside `/api/v3`, `/graphql` on github.com."""
        base = self.api_url.rstrip("/")
        return f"{base.removesuffix('/v3')}/graphql"


@dataclass(frozen=True, slots=True)
class _Installation:
    """What lasts of an installation. `tokens` by the repository that they are narrowed to, and the permissions."""

    manners: Manners
    kept: KeptAnswers
    tokens: dict[tuple[str, bool], InstallationToken]


class GithubApp:
    """One application of ours at one GitHub. Safe to share between threads."""

    def __init__(self, settings: GithubSettings, clock: Clock | None = None) -> None:
        """Raises `ForgeAuthenticationError` if the private key can't be read."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._installations: OrderedDict[str, _Installation] = OrderedDict()
        self._identity: AppAnswer | None = None
        # Reading the authorities takes 40 ms: once, not for each client.
        self._trust = httpx.create_ssl_context(settings.verify)
        self._transport = Transport(
            self._options(),
            credentials=AppKey(settings.app_id, settings.private_key, self._clock),
            dialect=GithubDialect(),
            clock=self._clock,
            manners=Manners(self._clock),
        )

    def client(self, installation: str, *, repository_id: str | None = None) -> GithubClient:
        """A client for an installation; with `repository_id`, its token is good for that repository alone."""
        lasting = self._lasting(installation)
        token = self._token(lasting, installation, repository_id, for_clone=False)
        clone_token = self._token(lasting, installation, repository_id, for_clone=True)
        transport = Transport(
            self._options(),
            credentials=token,
            dialect=GithubDialect(),
            clock=self._clock,
            manners=lasting.manners,
            kept=lasting.kept,
        )
        return GithubClient(
            transport,
            application=self.application,
            clone_token=clone_token.value,
            graphql_url=self._settings.graphql_url,
            web_url=self._settings.web_url.rstrip("/"),
            clock=self._clock,
            manners=lasting.manners,
        )

    def application(self) -> AppAnswer:
        """Who we are at GitHub. Asked once. Raises `ForgeError`."""
        with self._lock:
            if self._identity is None:
                self._identity = self._transport.get("/app").one(AppAnswer)
            return self._identity

    def identity(self) -> Person:
        """Who our comments are by. Raises `ForgeError`."""
        application = self.application()
        return Person(identifier=str(application.id), login=f"{application.slug}[bot]", is_bot=True)

    def hook_deliveries(self) -> Iterator[HookDelivery]:
        """What GitHub sent us in the last three days and what came of it, the newest first, 10,000 at most.

        Fetched page by page as it is looked at. Raises `ForgeError`.
        """
        for answer in islice(self._transport.pages("/app/hook/deliveries"), _PAGES_OF_DELIVERIES):
            yield from answer.many(HookDelivery)

    def redeliver(self, delivery: int) -> None:
        """Have a webhook sent again, soon, under its old id. Raises `ForgeError`."""
        self._transport.write("POST", f"/app/hook/deliveries/{delivery}/attempts")

    def close(self) -> None:
        """Let go of connections."""
        self._transport.close()

    def _options(self) -> TransportOptions:
        return TransportOptions(base_url=self._settings.api_url.rstrip("/"), headers=API_HEADERS, verify=self._trust)

    def _lasting(self, installation: str) -> _Installation:
        with self._lock:
            if installation not in self._installations:
                self._installations[installation] = _Installation(Manners(self._clock), KeptAnswers(), {})
            self._installations.move_to_end(installation)
            while len(self._installations) > _KEPT_INSTALLATIONS:
                self._installations.popitem(last=False)
            return self._installations[installation]

    def _token(
        self, lasting: _Installation, installation: str, repository_id: str | None, *, for_clone: bool
    ) -> InstallationToken:
        key = (repository_id or "", for_clone)
        narrowed = token_request([repository_id] if repository_id else [], _CLONE_PERMISSIONS if for_clone else {})
        with self._lock:
            if key not in lasting.tokens:
                lasting.tokens[key] = InstallationToken(lambda: self._fetched(installation, narrowed), self._clock)
            return lasting.tokens[key]

    def _fetched(self, installation: str, narrowed: Mapping[str, object]) -> Token:
        try:
            # A second token does no harm, so that this may be repeated.
            answer = self._transport.ask(f"/app/installations/{quote(installation, safe='')}/access_tokens", narrowed)
        except ForgeNotFoundError as error:
            raise ForgeNotFoundError("the installation is gone: the application was uninstalled at GitHub") from error
        return answer.one(Token)
