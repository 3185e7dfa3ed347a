"""OpenID Connect: sending a browser to the identity provider, and believing what it brings back, or not.

Authorisation code flow with PKCE. What begins a sign-in (state, nonce, verifier) travels in a sealed cookie, so that
only the browser that was sent away can come back; what the provider vouches for is believed by its signature, issuer,
audience, time and nonce. This module must not know users (`services.accounts.identities`).
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri  # type: ignore[import-untyped]
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from services.accounts.errors import IdentityError, IdentityProviderError
from services.accounts.secret import signing_key
from services.reports.untrusted import one_line, shorten
from services.settings import Settings

DEPARTURE_S: Final = 600
# `none` and the symmetric ones, for which a public key could be taken, are not among them.
_ALGORITHMS: Final = ("RS256", "ES256")
_SCOPES: Final = "openid profile email"
_KEPT_S: Final = 3600.0
# An unknown key is looked for again, but not as often as somebody invents one.
_KEYS_EVERY_S: Final = 60.0
_LEEWAY_S: Final = 60
_LARGEST: Final = 2**20
_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Departure:
    """A browser that is sent to the provider: where to, and what it keeps until it comes back."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the provider vouches for. `email` is null unless the provider says that it verified it."""

    issuer: str
    subject: str
    username: str
    display_name: str
    email: str | None


@dataclass(frozen=True, slots=True)
class _Begun:
    state: str
    nonce: str
    verifier: str
    goal: str
    until: int


@dataclass(frozen=True, slots=True)
class _Endpoints:
    authorization: str
    token: str
    keys: str
    userinfo: str | None
    basic: bool


class OpenIdProvider:
    """The one provider of the settings; what it says of itself is kept for an hour."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._key = hmac.new(signing_key(settings), b"gradproof openid 1", sha256).digest()
        self._lock = threading.Lock()
        self._endpoints: tuple[float, _Endpoints] | None = None
        self._keys: tuple[float, KeySet] | None = None

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back; it has to be registered there."""
        return f"{self._settings.public_url.rstrip('/')}/openid/callback"

    def depart(self, goal: str) -> Departure:
        """Send a browser to the provider. Raises `IdentityProviderError`."""
        begun = _Begun(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            goal=goal,
            until=int(time.time()) + DEPARTURE_S,
        )
        url = prepare_grant_uri(
            self._discovered().authorization,
            client_id=self._client_id,
            response_type="code",
            redirect_uri=self.redirect_uri,
            scope=_SCOPES,
            state=begun.state,
            nonce=begun.nonce,
            code_challenge=create_s256_code_challenge(begun.verifier),
            code_challenge_method="S256",
        )
        return Departure(str(url), self._seal(begun))

    def arrive(self, cookie: str | None, answer: Mapping[str, str]) -> tuple[Identity, str]:
        """Who came back, and where they wanted to go. `answer` is the query that the provider sent them with.

        Raises `IdentityError` for whatever can't be believed, `IdentityProviderError` if the provider fails.
        """
        begun = None if cookie is None else self._unseal(cookie)
        if begun is None or begun.until <= time.time():
            raise IdentityError("this sign-in did not begin in this browser, or took too long: begin again")
        if not hmac.compare_digest(answer.get("state", "").encode("utf-8", "replace"), begun.state.encode()):
            raise IdentityError("this sign-in belongs to another one that was begun: begin again")
        if "error" in answer:
            said = shorten(one_line(answer.get("error_description") or answer["error"]), 200)
            raise IdentityError(f"the identity provider refused: {said}")
        if not answer.get("code"):
            raise IdentityError("the identity provider sent no code")
        # Whoever says its name has to be the one that we sent the browser to (RFC 9207).
        if answer.get("iss", self._issuer) != self._issuer:
            raise IdentityError("the answer comes from another identity provider")
        tokens = self._redeem(answer["code"], begun.verifier)
        claims = self._verified(tokens.get("id_token"), begun.nonce)
        return self._identity(self._with_userinfo(claims, tokens)), begun.goal

    # ------------------------------------------------------------------------------------------ the provider

    def _redeem(self, code: str, verifier: str) -> Mapping[str, Any]:
        endpoints = self._discovered()
        secret = self._settings.oidc_client_secret.get_secret_value()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
            "client_id": self._client_id,
        }
        headers = {}
        if secret and endpoints.basic:
            pair = f"{quote(self._client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif secret:
            form["client_secret"] = secret
        status, body = self._ask("POST", endpoints.token, data=form, headers=headers)
        if 400 <= status < 500:
            said = shorten(one_line(str(body.get("error_description") or body.get("error") or status)), 200)
            raise IdentityError(f"the identity provider did not take the code: {said}")
        if status != 200:
            raise IdentityProviderError(f"the identity provider answered {status} to the code")
        return body

    def _verified(self, token: object, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that is genuine, for us, of this sign-in, and not over."""
        if not isinstance(token, str):
            raise IdentityError("the identity provider sent no ID token")
        try:
            try:
                decoded = jwt.decode(token, self._signing_keys(), algorithms=list(_ALGORITHMS))
            except (JoseError, ValueError):
                # The provider may have changed its keys since we asked for them.
                decoded = jwt.decode(token, self._signing_keys(renew=True), algorithms=list(_ALGORITHMS))
            registry = jwt.JWTClaimsRegistry(
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": self._issuer},
                sub={"essential": True},
                aud={"essential": True, "value": self._client_id},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(decoded.claims)
        except (JoseError, ValueError, TypeError) as error:
            said = shorten(one_line(str(error)), 200)
            raise IdentityError(f"the ID token can't be believed: {said}") from error
        claims = decoded.claims
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != self._client_id:
            raise IdentityError("the ID token was made for somebody else")
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
            raise IdentityError("the ID token names nobody")
        return dict(claims)

    def _with_userinfo(self, claims: dict[str, Any], tokens: Mapping[str, Any]) -> dict[str, Any]:
        """The claims with those of the userinfo endpoint, where the ID token says little."""
        endpoint, access = self._discovered().userinfo, tokens.get("access_token")
        if "email" in claims or "preferred_username" in claims or endpoint is None or not isinstance(access, str):
            return claims
        status, body = self._ask("GET", endpoint, headers={"Authorization": f"Bearer {access}"})
        if status != 200 or body.get("sub") != claims["sub"]:
            return claims
        return {**body, **claims}

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        def text(name: str) -> str:
            value = claims.get(name)
            return shorten(one_line(value), 200) if isinstance(value, str) else ""

        email = text("email") if claims.get("email_verified") is True else ""
        return Identity(
            issuer=self._issuer,
            subject=claims["sub"],
            username=text("preferred_username") or email.partition("@")[0] or text("name"),
            display_name=text("name") or text("preferred_username"),
            email=email or None,
        )

    def _discovered(self) -> _Endpoints:
        with self._lock:
            if self._endpoints is not None and time.monotonic() - self._endpoints[0] < _KEPT_S:
                return self._endpoints[1]
            status, told = self._ask("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if status != 200:
                raise IdentityProviderError(f"the identity provider answered {status} when asked what it can")
            if told.get("issuer") != self._issuer:
                raise IdentityProviderError(
                    f"the identity provider calls itself {shorten(one_line(str(told.get('issuer'))), 100)!r}:"
                    " GRADPROOF_OIDC_ISSUER has to say the same"
                )
            methods = told.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            endpoints = _Endpoints(
                authorization=self._address(told, "authorization_endpoint"),
                token=self._address(told, "token_endpoint"),
                keys=self._address(told, "jwks_uri"),
                userinfo=self._address(told, "userinfo_endpoint") if told.get("userinfo_endpoint") else None,
                basic=isinstance(methods, list) and "client_secret_basic" in methods,
            )
            self._endpoints = (time.monotonic(), endpoints)
            return endpoints

    def _signing_keys(self, *, renew: bool = False) -> KeySet:
        url = self._discovered().keys
        with self._lock:
            if self._keys is not None:
                age = time.monotonic() - self._keys[0]
                if age < (_KEYS_EVERY_S if renew else _KEPT_S):
                    return self._keys[1]
            status, told = self._ask("GET", url)
            if status != 200:
                raise IdentityProviderError(f"the identity provider answered {status} when asked for its keys")
            try:
                keys = KeySet.import_key_set(told)  # type: ignore[arg-type] # judged by the library
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise IdentityProviderError("the keys of the identity provider can't be read") from error
            self._keys = (time.monotonic(), keys)
            return keys

    def _address(self, told: Mapping[str, Any], name: str) -> str:
        """An endpoint: over https, unless the provider itself is on this very machine."""
        url = told.get(name)
        parts = urlsplit(url) if isinstance(url, str) else None
        local = urlsplit(self._issuer).hostname in _LOOPBACK
        if parts is None or not parts.hostname or parts.scheme not in (("https", "http") if local else ("https",)):
            raise IdentityProviderError(f"the identity provider names no usable {name}")
        return str(url)

    def _ask(
        self,
        method: str,
        url: str,
        *,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer; an empty object where it is none. Raises `IdentityProviderError`."""
        try:
            with (
                httpx.Client(timeout=_TIMEOUT, follow_redirects=False) as client,
                client.stream(method, url, data=data, headers={"Accept": "application/json", **(headers or {})}) as got,
            ):
                body = bytearray()
                for chunk in got.iter_bytes():
                    body += chunk
                    if len(body) > _LARGEST:
                        raise IdentityProviderError("the identity provider's answer is too large")
        except httpx.HTTPError as error:
            raise IdentityProviderError(f"the identity provider can't be reached: {type(error).__name__}") from error
        try:
            value = json.loads(bytes(body))
        except (ValueError, RecursionError):
            value = {}
        return got.status_code, value if isinstance(value, dict) else {}

    # ------------------------------------------------------------------------------------------ the cookie

    def _seal(self, begun: _Begun) -> str:
        text = base64.urlsafe_b64encode(json.dumps(asdict(begun)).encode()).decode()
        return f"{text}.{self._sign(text)}"

    def _unseal(self, cookie: str) -> _Begun | None:
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(text).encode()):
            return None
        return _Begun(**json.loads(base64.urlsafe_b64decode(text)))

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), sha256).hexdigest()
