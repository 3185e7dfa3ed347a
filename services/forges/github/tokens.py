"""How the application proves itself to GitHub: a short-lived signed claim, and with it a token for an installation.

A token lives for an hour and is renewed five minutes before that, so that none ends in the middle of a call. Nothing
is assumed about its length or form. Neither key nor token may get into a log, an error or a `repr`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from services.forges.clocks import Clock
from services.forges.errors import ForgeAuthenticationError
from services.forges.github.models import Token

# GitHub refuses claims from its future, by however little, and those that are valid for more than ten minutes.
_ISSUED_BEFORE: Final = timedelta(seconds=60)
_VALID_FOR: Final = timedelta(minutes=9)
_RENEWED_BEFORE_END: Final = timedelta(minutes=5)


class AppKey:
    """The private key of the application, and the claims that it signs."""

    def __init__(self, app_id: str, private_key: str, clock: Clock) -> None:
        """Raises `ForgeAuthenticationError` if the key can't be read."""
        self._app_id = app_id
        self._clock = clock
        try:
            self._key = RSAKey.import_key(private_key)
        except (JoseError, ValueError, TypeError):  # the library's message may quote the key
            raise ForgeAuthenticationError("the private key of the GitHub App is no RSA key in PEM form") from None
        if not self._key.is_private:
            raise ForgeAuthenticationError("the key of the GitHub App is a public one: its private key is needed")

    def header(self) -> str:
        """A fresh claim to be the application."""
        now = self._clock.now()
        claims = {
            "iat": int((now - _ISSUED_BEFORE).timestamp()),
            "exp": int((now + _VALID_FOR).timestamp()),
            "iss": self._app_id,
        }
        return f"Bearer {jwt.encode({'alg': 'RS256'}, claims, self._key, algorithms=['RS256'])}"

    def renew(self) -> bool:
        """Each claim is new already."""
        return False


class InstallationToken:
    """The token of one installation, perhaps narrowed, fetched when it is first needed and again before it ends."""

    def __init__(self, fetch: Callable[[], Token], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None

    def header(self) -> str:
        """The value of `Authorization`. Raises `ForgeError`."""
        return f"Bearer {self.value()}"

    def value(self) -> str:
        """The token. Raises `ForgeError`."""
        with self._lock:
            if self._token is None or self._ends_soon(self._token.expires_at):
                self._token = self._fetch()
            return self._token.token

    def renew(self) -> bool:
        """Forget the token: GitHub does not take it any more."""
        with self._lock:
            self._token = None
        return True

    def _ends_soon(self, expires_at: datetime) -> bool:
        return self._clock.now() >= expires_at - _RENEWED_BEFORE_END


def token_request(repository_ids: Sequence[str], permissions: Mapping[str, str]) -> dict[str, object]:
    """What a token is asked for with; everything that the installation may do without either."""
    asked: dict[str, object] = {}
    if repository_ids:
        asked["repository_ids"] = [int(identifier) for identifier in repository_ids]
    if permissions:
        asked["permissions"] = dict(permissions)
    return asked
