"""A webhook counts only when it is signed by somebody who knows a secret that is valid now."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from services.forges.errors import SignatureError
from services.forges.signatures import WebhookSecrets, verify_github, verify_gitlab

# The vector of GitHub's documentation.
SECRET = "It's a Secret to Everybody"
BODY = b"Hello, World!"
SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

SECRETS = WebhookSecrets((SECRET,))


def github(signature: str, **more: str) -> dict[str, str]:
    return {"x-hub-signature-256": signature, "x-github-event": "pull_request"} | more


def standard(
    body: bytes, *, secret: bytes = SECRET.encode(), identifier: str = "msg_1", at: datetime = NOW
) -> dict[str, str]:
    stamp = str(int(at.timestamp()))
    signed = b".".join((identifier.encode(), stamp.encode(), body))
    signature = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    return {"webhook-id": identifier, "webhook-timestamp": stamp, "webhook-signature": f"v1,{signature}"}


def test_the_vector_of_the_documentation_is_accepted() -> None:
    delivery = verify_github(BODY, github(SIGNATURE, **{"x-github-delivery": "72d3162e-cc78-11e3"}), SECRETS)
    assert delivery.identifier == "72d3162e-cc78-11e3"
    assert delivery.event == "pull_request"


@pytest.mark.parametrize(
    "signature",
    [
        "",
        SIGNATURE.removeprefix("sha256="),
        SIGNATURE.upper(),
        SIGNATURE[:-1],
        SIGNATURE + "0",
        "sha256=",
        "sha1=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest(),
        "sha256=é" + SIGNATURE.removeprefix("sha256="),
        "sha256=" + "\xff" * 64,
        "\ud800",
        "sha256=" + "0" * 10_000,
    ],
)
def test_anything_but_the_signature_is_refused_and_never_a_type_error(signature: str) -> None:
    with pytest.raises(SignatureError) as caught:
        verify_github(BODY, github(signature), SECRETS)
    assert caught.value.http_status == 401
    assert SECRET not in str(caught.value)


def test_the_body_is_signed_byte_by_byte() -> None:
    with pytest.raises(SignatureError):
        verify_github(BODY + b"\n", github(SIGNATURE), SECRETS)


def test_while_a_secret_is_changed_the_old_and_the_new_one_count() -> None:
    verify_github(BODY, github(SIGNATURE), WebhookSecrets(("the new one", SECRET)))
    verify_github(BODY, github(SIGNATURE), WebhookSecrets((SECRET, "the old one")))
    with pytest.raises(SignatureError):
        verify_github(BODY, github(SIGNATURE), WebhookSecrets(("the new one",)))


@pytest.mark.parametrize("values", [(), ("",), ("a", "")])
def test_an_empty_secret_would_let_everybody_in(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="secret"):
        WebhookSecrets(values)


def test_secrets_are_not_shown() -> None:
    assert SECRET not in repr(SECRETS)


@pytest.mark.parametrize("named", ["", "a" * 300, "x\ny", "../é"])
def test_without_a_usable_delivery_id_the_body_names_it(named: str) -> None:
    delivery = verify_github(BODY, github(SIGNATURE, **{"x-github-delivery": named}), SECRETS)
    assert delivery.identifier == "sha256:" + hashlib.sha256(BODY).hexdigest()


def test_the_event_is_a_plain_word_or_nothing() -> None:
    headers = github(SIGNATURE) | {"x-github-event": "<script>"}
    assert verify_github(BODY, headers, SECRETS).event == ""


def test_gitlabs_token_is_the_secret_itself() -> None:
    headers = {"x-gitlab-token": SECRET, "x-gitlab-event": "Merge Request Hook", "idempotency-key": "k-1"}
    delivery = verify_gitlab(BODY, headers, SECRETS, now=NOW)
    assert (delivery.identifier, delivery.event) == ("k-1", "Merge Request Hook")


@pytest.mark.parametrize("token", ["", "é", SECRET[:-1], SECRET + "x", "\udcff"])
def test_another_token_is_refused(token: str) -> None:
    with pytest.raises(SignatureError):
        verify_gitlab(BODY, {"x-gitlab-token": token}, SECRETS, now=NOW)


def test_hooks_that_share_an_event_uuid_are_different_deliveries() -> None:
    headers = {"x-gitlab-token": SECRET, "x-gitlab-event-uuid": "the same for both"}
    one, other = (verify_gitlab(body, headers, SECRETS, now=NOW) for body in (b"one", b"other"))
    assert one.identifier != other.identifier


@pytest.mark.parametrize("key", [SECRET.encode(), b"\x00\x01binary"])
def test_a_standard_signature_counts(key: bytes) -> None:
    secret = SECRET if key == SECRET.encode() else "whsec_" + base64.b64encode(key).decode()
    delivery = verify_gitlab(BODY, standard(BODY, secret=key), WebhookSecrets(("old", secret)), now=NOW)
    assert delivery.identifier == "msg_1"


def test_one_of_several_standard_signatures_suffices() -> None:
    headers = standard(BODY)
    headers["webhook-signature"] = "v1,AAAA v2,BBBB " + headers["webhook-signature"]
    verify_gitlab(BODY, headers, SECRETS, now=NOW)


@pytest.mark.parametrize("minutes", [-6, 6, 60 * 24 * 365])
def test_a_replayed_standard_signature_is_too_old(minutes: int) -> None:
    with pytest.raises(SignatureError, match="five minutes"):
        verify_gitlab(BODY, standard(BODY), SECRETS, now=NOW + timedelta(minutes=minutes))


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "9" * 12},
        {"webhook-timestamp": "9" * 40},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
    ],
)
def test_a_changed_standard_signature_is_refused_even_with_the_right_token(change: dict[str, str]) -> None:
    with pytest.raises(SignatureError):
        verify_gitlab(BODY, standard(BODY) | {"x-gitlab-token": SECRET} | change, SECRETS, now=NOW)


def test_a_malformed_standard_secret_lets_nobody_in() -> None:
    with pytest.raises(SignatureError):
        verify_gitlab(BODY, standard(BODY, secret=b""), WebhookSecrets(("whsec_not base64",)), now=NOW)
