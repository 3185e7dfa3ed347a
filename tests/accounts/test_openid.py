"""Signing in through an identity provider, over HTTP: who gets in, and every way in which nobody does."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey
from pydantic import SecretStr
from sqlalchemy import select

from services.accounts.access import SYSTEM
from services.accounts.errors import IdentityError, IdentityProviderError
from services.accounts.identities import IdentityService
from services.accounts.models import IdentityRow, MembershipRow, SessionRow, UserRow
from services.accounts.openid import Identity, OpenIdProvider
from services.accounts.organisations import OrganisationService
from services.accounts.users import UserService
from services.database import Database
from services.settings import Settings
from tests.accounts.provider import CLIENT, SECRET, Provider
from tests.serving import RunningServer


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running: Provider) -> Provider:
    honest(running)
    return running


def honest(provider: Provider) -> None:
    fresh: dict[str, Any] = {
        "called": None,
        "lies": {},
        "refusal": None,
        "userinfo": None,
        "algorithm": "RS256",
        "published": None,
    }
    person = {"sub": "248289761001", "preferred_username": "Ada.L", "name": "Ada Lovelace"}
    provider.__dict__.update(fresh, person=person, key=_KEY)


_KEY = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})


def made_for(settings: Settings, provider: Provider) -> Settings:
    return settings.model_copy(
        update={"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_client_secret": SecretStr(SECRET)}
    )


@pytest.fixture
def with_provider(service_settings: Settings, provider: Provider) -> Settings:
    return made_for(service_settings, provider)


@pytest.fixture(scope="module")
def server(running: Provider, migrated_sqlite_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests that ask what is believed, not what is kept."""
    directory = tmp_path_factory.mktemp("openid")
    shutil.copy(migrated_sqlite_file, directory / "gradproof.sqlite3")
    with RunningServer(made_for(Settings(data_dir=directory), running)) as running_server:
        yield running_server


@pytest.fixture
def browser(server: RunningServer, provider: Provider) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}) as client:
        yield client


def away(browser: httpx.Client, goal: str = "/workers") -> str:
    """Where the provider sends the browser back to: path and query of the callback."""
    response = browser.get("/openid/sign-in", params={"next": goal})
    assert response.status_code == 303, response.text
    back = httpx.get(response.headers["location"])
    assert back.status_code == 303, back.text
    return httpx.URL(back.headers["location"]).raw_path.decode()


def signed_in(browser: httpx.Client) -> bool:
    return browser.get("/workers").status_code == 200


def refused(browser: httpx.Client, callback: str, why: str) -> None:
    response = browser.get(callback)
    assert response.status_code == 401, response.text
    assert why in response.text
    assert not signed_in(browser)


def test_a_newcomer_becomes_a_user_and_stays_the_same(with_provider: Settings, database: Database) -> None:
    with RunningServer(with_provider) as server, httpx.Client(base_url=server.url) as browser:
        assert "Continue with your organisation" in browser.get("/sign-in").text
        response = browser.get(away(browser, "/workers"))
        assert (response.status_code, response.headers["location"]) == (303, "/workers")
        assert signed_in(browser)
        assert "gradproof_openid" not in browser.cookies
        browser.cookies.clear()
        browser.get(away(browser))
    with database.reading() as session:
        (user,) = session.scalars(select(UserRow))
        assert (user.name, user.display_name, user.password, user.is_operator) == ("ada.l", "Ada Lovelace", None, False)
        assert session.scalars(select(IdentityRow.subject)).all() == ["248289761001"]
        assert session.scalars(select(MembershipRow)).all() == []
        assert len(session.scalars(select(SessionRow)).all()) == 2


def test_newcomers_get_the_role_that_the_settings_say(
    with_provider: Settings, database: Database, provider: Provider
) -> None:
    OrganisationService(database).create(SYSTEM, "acme")
    settings = with_provider.model_copy(update={"oidc_organisation": "acme", "oidc_role": "triager"})
    with RunningServer(settings) as server, httpx.Client(base_url=server.url) as browser:
        browser.get(away(browser))
    with database.reading() as session:
        assert session.scalars(select(MembershipRow.role)).all() == ["triager"]


def identity(subject: str, username: str = "ada.l", email: str | None = None) -> Identity:
    return Identity("https://id.example", subject, username, "Ada", email)


def test_neither_name_nor_address_makes_anybody_somebody_else(database: Database, service_settings: Settings) -> None:
    UserService(database).create(SYSTEM, "ada.l", password=None, email="ada@example.org", is_operator=True)
    identities = IdentityService(database, service_settings)
    first = identities.sign_in(identity("1", email="ada@example.org"))
    assert identities.sign_in(identity("1", username="operator")) == first
    assert not identities.sign_in(identity("2")).everywhere
    with database.reading() as session:
        rows = session.execute(select(UserRow.name, UserRow.is_operator).order_by(UserRow.name)).all()
    assert [tuple(row) for row in rows] == [("ada.l", True), ("ada.l-2", False), ("ada.l-3", False)]


def test_names_that_can_not_be_become_some_that_can(database: Database, service_settings: Settings) -> None:
    identities = IdentityService(database, service_settings)
    wanted = ["Élodie Müller", "", "...", "x" * 300, "a@b@c", "<script>"]
    names = [identities.sign_in(identity(str(number), name)).name for number, name in enumerate(wanted)]
    assert names == ["lodie-m-ller", "user", "user-2", "x" * 48, "a", "script"]


def test_one_person_in_two_windows_is_one_user(database: Database, service_settings: Settings) -> None:
    identities = IdentityService(database, service_settings)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: identities.sign_in(identity("1")).id, range(8)))
    assert len(found) == 1


def test_an_address_counts_only_when_it_was_verified(provider: Provider, embedded_settings: Settings) -> None:
    openid = OpenIdProvider(made_for(embedded_settings, provider))
    for verified, kept in ((True, "a@example.org"), (False, None), ("true", None), (None, None)):
        provider.person |= {"email": "a@example.org", "email_verified": verified}
        assert returned(openid).email == kept, verified


def test_what_the_id_token_does_not_say_is_asked_for(provider: Provider, embedded_settings: Settings) -> None:
    provider.person = {"sub": "7"}
    provider.userinfo = {"sub": "7", "name": "Grace Hopper", "email": "grace@example.org", "email_verified": True}
    openid = OpenIdProvider(made_for(embedded_settings, provider))
    assert returned(openid) == Identity(provider.issuer, "7", "grace", "Grace Hopper", "grace@example.org")
    provider.person = {"sub": "8"}  # the userinfo of somebody else
    assert returned(openid) == Identity(provider.issuer, "8", "", "", None)


def test_what_the_provider_says_of_itself_is_asked_for_once_and_new_keys_when_needed(
    provider: Provider, embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    openid = OpenIdProvider(made_for(embedded_settings, provider))
    provider.asked.clear()
    returned(openid)
    returned(openid)
    assert provider.asked == ["configuration", "keys"]
    provider.rotate()
    with pytest.raises(IdentityError):  # asked for a moment ago: whoever invents keys does not make us ask again
        returned(openid)
    monkeypatch.setattr("services.accounts.openid._KEYS_EVERY_S", 0.0)
    returned(openid)
    assert provider.asked == ["configuration", "keys", "keys"]


def returned(openid: OpenIdProvider) -> Identity:
    departure = openid.depart("/")
    back = httpx.get(departure.url).headers["location"]
    return openid.arrive(departure.cookie, dict(httpx.URL(back).params))[0]


def test_a_disabled_user_stays_out(database: Database, service_settings: Settings) -> None:
    identities = IdentityService(database, service_settings)
    subject = identities.sign_in(identity("1"))
    UserService(database).disable(SYSTEM, subject.name)
    with pytest.raises(IdentityError, match="disabled"):
        identities.sign_in(identity("1"))


LIES: dict[str, tuple[Callable[[Provider], object], str]] = {
    "another nonce": (lambda provider: provider.lies.update(nonce="n"), "nonce"),
    "no nonce": (lambda provider: provider.lies.update(nonce=None), "nonce"),
    "another audience": (lambda provider: provider.lies.update(aud="another"), "aud"),
    "several audiences, made for another": (lambda provider: provider.lies.update(aud=[CLIENT, "x"]), "somebody else"),
    "made for another": (lambda provider: provider.lies.update(azp="another"), "somebody else"),
    "another issuer": (lambda provider: provider.lies.update(iss="https://evil.example"), "iss"),
    "expired": (lambda provider: provider.lies.update(exp=int(time.time()) - 61), "expired"),
    "from the future": (lambda provider: provider.lies.update(iat=int(time.time()) + 600), "can&#39;t be believed"),
    "without an end": (lambda provider: provider.lies.update(exp=None), "exp"),
    "of nobody": (lambda provider: provider.lies.update(sub=None), "sub"),
    "a subject that is no text": (lambda provider: provider.lies.update(sub=7), "sub"),
    "signed by somebody else": (
        lambda provider: provider.__dict__.update(
            key=RSAKey.generate_key(2048, {"kid": "1", "use": "sig"}), published=[_KEY]
        ),
        "can&#39;t be believed",
    ),
    "signed with another kind of signature": (
        lambda provider: provider.__dict__.update(algorithm="PS256"),
        "can&#39;t be believed",
    ),
    "signed with what everybody knows": (
        lambda provider: provider.__dict__.update(
            algorithm="HS256", key=OctKey.import_key(b"k" * 32, {"kid": "1"}), published=[_KEY]
        ),
        "can&#39;t be believed",
    ),
}


def test_what_can_not_be_believed_lets_nobody_in(browser: httpx.Client, provider: Provider) -> None:
    for lie, why in LIES.values():
        honest(provider)
        lie(provider)
        refused(browser, away(browser), why)
    honest(provider)
    assert browser.get(away(browser)).status_code == 303


def test_elliptic_curves_are_known(provider: Provider, embedded_settings: Settings) -> None:
    provider.key = ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"})
    provider.algorithm = "ES256"
    assert returned(OpenIdProvider(made_for(embedded_settings, provider))).subject == "248289761001"


def test_a_return_is_good_once_and_in_the_browser_that_was_sent_away(browser: httpx.Client) -> None:
    callback = away(browser)
    kept = dict(browser.cookies)
    assert browser.get(callback).status_code == 303
    browser.post("/sign-out")
    browser.cookies.clear()
    refused(browser, callback, "did not begin in this browser")
    browser.cookies.update(kept)  # a browser that kept what it should have forgotten
    refused(browser, callback, "did not take the code")
    stranger = away(browser)
    browser.cookies.clear()
    refused(browser, stranger, "did not begin in this browser")


def test_a_state_of_another_sign_in_is_refused(browser: httpx.Client) -> None:
    first = away(browser)
    away(browser)
    refused(browser, first, "belongs to another one")


def test_a_damaged_cookie_is_no_sign_in(browser: httpx.Client) -> None:
    for damage in ("{}x", "x{}", "é", "..", "e30=.x"):
        callback = away(browser)
        cookie = damage.format(browser.cookies["gradproof_openid"])
        browser.cookies.clear()
        headers: Any = {"Cookie": f"gradproof_openid={cookie}".encode()}
        assert browser.get(callback, headers=headers).status_code == 401


def test_a_refusal_is_told_and_made_harmless(browser: httpx.Client, provider: Provider) -> None:
    provider.refusal = {"error": "access_denied", "error_description": "<b>not\x1b[31m you</b>"}
    response = browser.get(away(browser))
    assert response.status_code == 401
    assert "&lt;b&gt;not" in response.text
    assert "\x1b" not in response.text


def test_a_provider_that_calls_itself_otherwise_or_is_away_is_said(
    server: RunningServer, provider: Provider, embedded_settings: Settings
) -> None:
    provider.called = "https://evil.example"
    with pytest.raises(IdentityProviderError, match="GRADPROOF_OIDC_ISSUER"):
        OpenIdProvider(made_for(embedded_settings, provider)).depart("/")
    away_from_here = embedded_settings.model_copy(update={"oidc_issuer": "http://127.0.0.1:1", "oidc_client_id": "x"})
    with RunningServer(away_from_here) as other:
        response = httpx.get(f"{other.url}/openid/sign-in")
        assert (response.status_code, response.json()["code"]) == (503, "identity-provider")


def test_without_a_provider_there_is_no_such_way(embedded_settings: Settings) -> None:
    with RunningServer(embedded_settings) as server:
        assert "Continue with" not in httpx.get(f"{server.url}/sign-in").text
        assert httpx.get(f"{server.url}/openid/sign-in").status_code == 404
        assert httpx.get(f"{server.url}/openid/callback").status_code == 404


def test_signing_in_never_leads_to_another_site(browser: httpx.Client) -> None:
    for goal in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        assert browser.get(away(browser, goal)).headers["location"] == "/"
