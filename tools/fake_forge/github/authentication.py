"""Who sends a request: the App with a JWT of its key, an installation with a token, or nobody."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from functools import cache
from typing import Final, Literal

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey, RSAKey

from tools.fake_forge.exchange import Refusal
from tools.fake_forge.world import Installation, Token, World

LIFE: Final = timedelta(hours=1)
_LONGEST_JWT: Final = timedelta(minutes=10)
_KEY_BITS: Final = 2048


class Authentication:
    """Checks what stands in `Authorization`, and issues tokens."""

    def __init__(self, world: World, app_id: int, client_id: str) -> None:
        self._world = world
        self._issuers = frozenset({str(app_id), client_id})
        self._app_id = app_id
        self.key = _app_key()
        self._token_key = OctKey.generate_key(256)

    @property
    def private_key(self) -> str:
        """The App's key, as downloaded from GitHub."""
        return self.key.as_pem(private=True).decode()

    def principal(self, header: str | None) -> Token | Literal["app"] | None:
        """The sender. Raises `Refusal` for what is there and isn't good."""
        if not header:
            return None
        scheme, _, text = header.partition(" ")
        if scheme.lower() not in ("bearer", "token") or not text:
            raise _bad_credentials()
        return self.token(text) if text.startswith("gh") else self._app(text)

    def token(self, text: str) -> Token:
        """The installation token of that text. Raises `Refusal`."""
        token = self._world.tokens.get(text)
        if token is None or token.expires_at <= self._world.clock.now():
            raise _bad_credentials()
        if token.installation.id not in self._world.installations:
            raise _bad_credentials()
        if token.installation.suspended_at is not None:
            raise Refusal(403, "This installation has been suspended")
        return token

    def issue(
        self, installation: Installation, permissions: dict[str, str], repositories: frozenset[int] | None
    ) -> Token:
        """A new token for one hour, in GitHub's long form: `ghs_`, the App's id, `_`, a JWT."""
        expires_at = self._world.clock.now() + LIFE
        claims = {"iss": str(installation.id), "exp": int(expires_at.timestamp()), "jti": secrets.token_urlsafe(12)}
        signed = jwt.encode({"alg": "HS256"}, claims, self._token_key)
        token = Token(f"ghs_{self._app_id}_{signed}", installation, expires_at, permissions, repositories)
        self._world.tokens[token.text] = token
        return token

    def _app(self, text: str) -> Literal["app"]:
        try:
            claims = jwt.decode(text, self.key, algorithms=["RS256"]).claims
        except (JoseError, ValueError, json.JSONDecodeError) as error:
            raise _unauthorised("A JSON web token could not be decoded") from error
        now = self._world.clock.now().timestamp()
        issued, expires, issuer = claims.get("iat"), claims.get("exp"), claims.get("iss")
        if issuer is None:
            raise _unauthorised("Missing 'issuer' claim ('iss')")
        if not isinstance(expires, int) or expires <= now:
            raise _unauthorised(
                "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the "
                "assertion expires"
            )
        if expires > now + _LONGEST_JWT.total_seconds():
            raise _unauthorised("'Expiration time' claim ('exp') is too far in the future")
        # Clocks drift: GitHub advises to date a JWT 60 s back, and refuses one of the future.
        if not isinstance(issued, int) or issued > now:
            raise _unauthorised(
                "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
            )
        if str(issuer) not in self._issuers:
            raise Refusal(404, "Integration not found")
        return "app"


@cache
def _app_key() -> RSAKey:
    """One key for the process: making one takes 0.1 to 0.3 s."""
    return RSAKey.generate_key(_KEY_BITS)


def _unauthorised(message: str) -> Refusal:
    return Refusal(401, message)


def _bad_credentials() -> Refusal:
    return Refusal(401, "Bad credentials")
