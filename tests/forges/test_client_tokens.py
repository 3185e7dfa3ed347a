"""The application proves itself by a short claim; tokens are kept until shortly before they end, and shown nowhere."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from services.forges.errors import (
    ForgeAuthenticationError,
    ForgeNotFoundError,
    ForgeUnavailableError,
    InstallationSuspendedError,
    PermissionMissingError,
)
from services.forges.github import GithubApp, GithubSettings
from services.forges.redaction import redacted
from services.forges.values import Person
from tests.forges.scripted import START, Heard, Said, ScriptedForge, StoodClock

KEY = RSAKey.generate_key(2048)
SOMEBODY = Person("1", "somebody")
PEM = KEY.as_pem(private=True).decode()
# As GitHub gives them out since 2026: an application id and a signed part, of no fixed length.
TOKEN = "ghs_77_eyJhbGciOiJSUzI1NiJ9.eyJpYXQiOjF9." + "x" * 900


class Github:
    """Gives out numbered tokens, valid for an hour of the test's clock."""

    def __init__(self, clock: StoodClock) -> None:
        self.clock = clock
        self.given: list[Heard] = []
        self.refused: Said | None = None
        self.taken: set[str] = set()

    def __call__(self, heard: Heard) -> Said:
        if heard.path.endswith("/access_tokens"):
            if self.refused is not None:
                return self.refused
            self.given.append(heard)
            token = f"{TOKEN}{len(self.given)}"
            self.taken = {f"Bearer {token}"}
            ends = (self.clock.now() + timedelta(hours=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return Said(201, {"token": token, "expires_at": ends, "permissions": {}, "new": "field"})
        if heard.headers["authorization"] not in self.taken:
            return Said(401, {"message": "Bad credentials"})
        return Said(body={"permission": "write"})


def app(forge: ScriptedForge, clock: StoodClock, **changes: Any) -> GithubApp:
    return GithubApp(GithubSettings(**{"app_id": "77", "private_key": PEM, "api_url": forge.url} | changes), clock)


def claims(heard: Heard) -> dict[str, Any]:
    token = jwt.decode(heard.headers["authorization"].removeprefix("Bearer "), KEY, algorithms=["RS256"])
    return dict(token.claims)


def test_a_claim_begins_a_minute_ago_and_ends_within_ten() -> None:
    clock = StoodClock()
    github = Github(clock)
    with ScriptedForge(script=github) as forge:
        app(forge, clock).client("5").clone_access("o/r")
    said = claims(github.given[0])
    assert said["iss"] == "77"
    assert datetime.fromtimestamp(said["iat"], UTC) == START - timedelta(seconds=60)
    assert START < datetime.fromtimestamp(said["exp"], UTC) <= START + timedelta(minutes=10)


def test_a_token_is_kept_until_five_minutes_before_its_end() -> None:
    clock = StoodClock()
    github = Github(clock)
    with ScriptedForge(script=github) as forge:
        ours = app(forge, clock)
        for after, fetched in ((0, 1), (54, 1), (1, 2), (54, 2), (1, 3)):
            clock.time += timedelta(minutes=after)
            ours.client("5").permission("o/r", SOMEBODY)
            assert len(github.given) == fetched, f"after {after} minutes more"
        ours.client("6").permission("o/r", SOMEBODY)
        assert len(github.given) == 4


def test_a_token_that_was_revoked_is_fetched_anew_once() -> None:
    clock = StoodClock()
    github = Github(clock)
    with ScriptedForge(script=github) as forge:
        client = app(forge, clock).client("5")
        client.permission("o/r", SOMEBODY)
        github.taken = set()
        client.permission("o/r", SOMEBODY)
        assert len(github.given) == 2


def test_tokens_are_narrowed_and_that_of_a_clone_can_only_read() -> None:
    clock = StoodClock()
    github = Github(clock)
    with ScriptedForge(script=github) as forge:
        client = app(forge, clock).client("5", repository_id="12")
        client.permission("o/r", SOMEBODY)
        client.clone_access("o/r")
    assert [heard.json() for heard in github.given] == [
        {"repository_ids": [12]},
        {"repository_ids": [12], "permissions": {"contents": "read"}},
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Said(403, {"message": "This installation has been suspended"}), InstallationSuspendedError),
        (Said(404, {"message": "Not Found"}), ForgeNotFoundError),
        (Said(401, {"message": "A JSON web token could not be decoded"}), ForgeAuthenticationError),
        (Said(403, {"message": "Resource not accessible by integration"}), PermissionMissingError),
    ],
)
def test_why_there_is_no_token_is_told(said: Said, expected: type[Exception]) -> None:
    clock = StoodClock()
    github = Github(clock)
    github.refused = said
    with ScriptedForge(script=github) as forge, pytest.raises(expected):
        app(forge, clock).client("5").pull_request("o/r", 1)


def test_nothing_shows_a_key_or_a_token() -> None:
    clock = StoodClock()
    github = Github(clock)
    with ScriptedForge(script=github) as forge:
        settings = GithubSettings("77", PEM, api_url=forge.url)
        ours = GithubApp(settings, clock)
        client = ours.client("5")
        access = client.clone_access("o/r", 7)
    shown = repr((settings, ours, client, access, vars(client), vars(client._transport)))
    assert "PRIVATE KEY" not in shown
    assert "ghs_" not in shown
    assert "Basic" not in shown
    assert access.url == "https://github.com/o/r.git"
    assert "@" not in access.url
    assert access.pull_request_ref == "refs/pull/7/head"
    assert access.headers["Authorization"].startswith("Basic ")


def test_no_log_holds_a_token(caplog: pytest.LogCaptureFixture) -> None:
    clock = StoodClock()
    github = Github(clock)
    with caplog.at_level(logging.DEBUG), ScriptedForge(script=github) as forge:
        app(forge, clock).client("5").permission("o/r", SOMEBODY)
        github.refused = Said(500, {"message": f"no {TOKEN}"})
        with pytest.raises(ForgeUnavailableError):
            app(forge, clock).client("6").permission("o/r", SOMEBODY)
    assert "GET" in caplog.text, "libraries do log"
    assert "ghs_" not in caplog.text
    assert "eyJ" not in caplog.text
    assert "Bearer" not in caplog.text


@pytest.mark.parametrize(
    "key",
    [
        "",
        "secret words",
        "-----BEGIN RSA PRIVATE KEY-----\nc2VjcmV0IHdvcmRz\n-----END RSA PRIVATE KEY-----\n",
        KEY.as_pem(private=False).decode(),
        ECKey.generate_key("P-256").as_pem(private=True).decode(),
    ],
)
def test_a_key_that_is_none_is_refused_without_being_quoted(key: str) -> None:
    with pytest.raises(ForgeAuthenticationError) as caught:
        GithubApp(GithubSettings("77", key))
    shown = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "secret" not in shown
    assert "c2VjcmV0" not in shown


@pytest.mark.parametrize("url", ["", "api.github.com", "ftp://github.com", "https://user@host", "https://host/?a=b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ForgeAuthenticationError, match="api_url"):
        GithubSettings("77", PEM, api_url=url)


@pytest.mark.parametrize(
    ("api", "graphql"),
    [
        ("https://api.github.com", "https://api.github.com/graphql"),
        ("https://ghe.example/api/v3", "https://ghe.example/api/graphql"),
        ("https://ghe.example/api/v3/", "https://ghe.example/api/graphql"),
    ],
)
def test_where_graphql_is(api: str, graphql: str) -> None:
    assert GithubSettings("77", PEM, api_url=api).graphql_url == graphql


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "ghp_" + "a" * 36,
        "ghu_x",
        "github_pat_11ABC_def",
        "glpat-abcdefghijklmnopqrst",
        "glptt-" + "0" * 40,
        "eyJhbGciOi.eyJpYXQ.abc-_",
        "https://user:" + "word@host/path",
        PEM,
    ],
)
def test_what_looks_like_a_credential_is_removed(secret: str) -> None:
    cleaned = redacted(f"before {secret} after")
    assert "[removed]" in cleaned
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")
    assert not any(part in cleaned for part in (secret, "word", "abc", "aaaa", "0000", "BEGIN"))
