"""Tells whether a webhook comes from somebody who knows the secret, and what its delivery is called. Pure.

A signature covers the bytes as they came, so nothing may be parsed before. Everything is compared as bytes in constant
time: `hmac.compare_digest` raises TypeError for a text that is not ASCII, which anybody could send to cause a 500.
Only SHA-256 counts. Several secrets may be valid at once, so that they can be changed without losing deliveries.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from services.forges.errors import SignatureError

_GITHUB_PREFIX: Final = b"sha256="
_STANDARD_PREFIX: Final = "whsec_"  # a secret of Standard Webhooks is base64 after this
_OLDEST: Final = timedelta(minutes=5)  # what Standard Webhooks recommends for both directions
_MAX_SIGNATURES: Final = 10  # in one header, of secrets that are being changed
_MAX_DELIVERY_ID: Final = 200
_DELIVERY_ID: Final = re.compile(r"[A-Za-z0-9_.:\-]+")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook that is what it claims to be. `identifier` is the same for each redelivery of one event."""

    identifier: str
    event: str


@dataclass(frozen=True, slots=True)
class WebhookSecrets:
    """The secrets that are valid now: one, or the old and the new one. Never shown."""

    values: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.values or not all(self.values):
            raise ValueError("a webhook needs a secret that is not empty")

    def as_bytes(self) -> tuple[bytes, ...]:
        """Each as the bytes that it signs with."""
        return tuple(value.encode() for value in self.values)


def verify_github(body: bytes, headers: Mapping[str, str], secrets: WebhookSecrets) -> Delivery:
    """The delivery of a GitHub webhook. Header names in lower case. Raises `SignatureError`."""
    given = _bytes(headers.get("x-hub-signature-256", ""))
    if not given:
        raise SignatureError("the webhook is not signed: X-Hub-Signature-256 is missing")
    if not _any_equal(given, [_GITHUB_PREFIX + _hex_hmac(secret, body) for secret in secrets.as_bytes()]):
        raise SignatureError("X-Hub-Signature-256 does not fit the body and the secret")
    return Delivery(
        identifier=_identifier(headers.get("x-github-delivery"), body), event=_word(headers.get("x-github-event"))
    )


def verify_gitlab(body: bytes, headers: Mapping[str, str], secrets: WebhookSecrets, *, now: datetime) -> Delivery:
    """The delivery of a GitLab webhook. Header names in lower case. Raises `SignatureError`.

    A signature (Standard Webhooks) is what counts if there is one; else the plain token.
    """
    if "webhook-signature" in headers:
        _verify_standard(body, headers, secrets, now)
        named = headers.get("webhook-id")
    else:
        given = _bytes(headers.get("x-gitlab-token", ""))
        if not given:
            raise SignatureError("the webhook is not signed: X-Gitlab-Token and webhook-signature are missing")
        if not _any_equal(given, secrets.as_bytes()):
            raise SignatureError("X-Gitlab-Token is not the secret")
        # Not X-Gitlab-Event-UUID: hooks that set off one another share it, and would be taken for one delivery.
        named = headers.get("idempotency-key") or headers.get("webhook-id")
    return Delivery(identifier=_identifier(named, body), event=_word(headers.get("x-gitlab-event")))


def _verify_standard(body: bytes, headers: Mapping[str, str], secrets: WebhookSecrets, now: datetime) -> None:
    identifier, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not identifier or not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise SignatureError("webhook-signature without webhook-id or webhook-timestamp")
    if abs(now.timestamp() - int(stamp)) > _OLDEST.total_seconds():
        raise SignatureError("webhook-timestamp is more than five minutes from now")
    signed = b".".join((_bytes(identifier), stamp.encode(), body))
    expected = [
        base64.b64encode(hmac.digest(key, signed, "sha256"))
        for secret in secrets.values
        for key in _standard_keys(secret)
    ]
    given = [
        _bytes(value)
        for version, _, value in (
            part.partition(",") for part in headers["webhook-signature"].split()[:_MAX_SIGNATURES]
        )
        if version == "v1"
    ]
    if not any([_any_equal(signature, expected) for signature in given]):  # noqa: C419 - all of them, in constant time
        raise SignatureError("webhook-signature does not fit the body and the secret")


def _standard_keys(secret: str) -> Sequence[bytes]:
    """The key that a secret stands for: base64 after `whsec_`, else its own bytes."""
    if secret.startswith(_STANDARD_PREFIX):
        try:
            return (base64.b64decode(secret.removeprefix(_STANDARD_PREFIX), validate=True),)
        except binascii.Error:
            return ()
    return (secret.encode(),)


def _identifier(named: str | None, body: bytes) -> str:
    """What the forge calls the delivery, else (old GitLab) a digest of the body, which repeats with it."""
    if named and len(named) <= _MAX_DELIVERY_ID and _DELIVERY_ID.fullmatch(named):
        return named
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _word(value: str | None) -> str:
    """The name of an event, of which nothing but a plain word is believed."""
    return value if value and re.fullmatch(r"[A-Za-z0-9_ ]{1,100}", value) else ""


def _hex_hmac(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256").hex().encode()


def _bytes(text: str) -> bytes:
    """A header as bytes, whatever is in it: none of it may raise."""
    return text.encode("utf-8", "surrogatepass")


def _any_equal(given: bytes, expected: Sequence[bytes]) -> bool:
    """Whether it is one of them; all are compared, however early one fits."""
    return any([hmac.compare_digest(given, value) for value in expected])  # noqa: C419 - the same
