"""Signing in and out over HTTP: by password, under which cookie, and what a form has to carry."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from services.accounts import SYSTEM, TokenService
from services.accounts.models import UserRow
from services.accounts.passwords import hash_password
from services.accounts.users import UserService
from services.database import Database
from services.settings import Settings
from tests.serving import RunningServer

PASSWORD = "staple horse battery"


@pytest.fixture(scope="module")
def kept() -> str:
    return hash_password(PASSWORD)


@pytest.fixture
def service_settings(embedded_settings: Settings) -> Settings:
    """One database: what is kept is tried with the use cases."""
    return embedded_settings


@pytest.fixture
def ada(database: Database, kept: str) -> str:
    user = UserService(database).create(SYSTEM, "ada", password=None, is_operator=True)
    with database.unit_of_work() as uow:
        uow.session.get_one(UserRow, user.id).password = kept
    return user.name


@pytest.fixture
def browser(server: RunningServer, ada: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=30) as client:
        yield client


def sign_in(browser: httpx.Client, password: str = PASSWORD, **more: str) -> httpx.Response:
    return browser.post("/sign-in", data={"name": "ada", "password": password, **more})


def csrf(browser: httpx.Client) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', browser.get("/workers").text)
    assert found is not None
    return found[1]


def signed_in(browser: httpx.Client) -> bool:
    return browser.get("/workers").status_code == 200


def test_a_password_opens_a_session_and_leads_on(browser: httpx.Client) -> None:
    assert browser.get("/workers").headers["location"] == "/sign-in?next=/workers"
    assert 'name="password"' in browser.get("/sign-in").text
    response = sign_in(browser, next="/workers")
    assert (response.status_code, response.headers["location"]) == (303, "/workers")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    assert signed_in(browser)
    for page in ("//evil.example", "https://evil.example", "/\\evil.example", "//[", "/\x00", "https://["):
        assert sign_in(browser, next=page).headers["location"] == "/"


def test_over_https_the_cookie_stays_there(service_settings: Settings, ada: str) -> None:
    settings = service_settings.model_copy(update={"public_url": "https://gradproof.example"})
    with RunningServer(settings) as server, httpx.Client(base_url=server.url) as browser:
        assert "Secure" in sign_in(browser).headers["set-cookie"]


def test_a_wrong_password_says_no_more_than_that(browser: httpx.Client) -> None:
    for response in (
        sign_in(browser, "another password"),
        browser.post("/sign-in", data={"name": "nobody", "password": PASSWORD}),
    ):
        assert response.status_code == 401
        assert "Name and password do not belong together." in response.text
        assert "set-cookie" not in response.headers
    assert 'value="ada"' in sign_in(browser, "another password").text


def test_guessing_is_slowed_down_and_told_when_to_go_on(browser: httpx.Client) -> None:
    for _ in range(6):
        assert sign_in(browser, "another password").status_code == 401
    response = sign_in(browser)
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 2
    assert "wait before you try again" in response.text


def test_a_new_session_takes_none_over(browser: httpx.Client) -> None:
    sign_in(browser)
    first = browser.cookies["gradproof_session"]
    sign_in(browser)
    assert browser.cookies["gradproof_session"] != first
    browser.cookies.clear()
    browser.cookies.set("gradproof_session", first)
    assert not signed_in(browser)
    browser.cookies.clear()
    response = browser.post(
        "/sign-in",
        data={"name": "ada", "password": PASSWORD},
        headers={"Cookie": "gradproof_session=chosen-by-somebody-else"},
    )
    assert "chosen" not in response.headers["set-cookie"]


def test_signing_out_ends_the_session_itself(browser: httpx.Client) -> None:
    sign_in(browser)
    cookie = browser.cookies["gradproof_session"]
    assert browser.post("/sign-out", data={"csrf": csrf(browser)}).headers["location"] == "/sign-in"
    assert "gradproof_session" not in browser.cookies
    browser.cookies.set("gradproof_session", cookie)
    assert not signed_in(browser)
    assert browser.post("/sign-out").status_code == 303


def test_signing_out_everywhere(browser: httpx.Client, server: RunningServer) -> None:
    sign_in(browser)
    with httpx.Client(base_url=server.url) as other:
        sign_in(other)
        assert signed_in(other)
        browser.post("/sign-out/everywhere", data={"csrf": csrf(browser)})
        assert not signed_in(other)
    assert not signed_in(browser)


def test_a_form_is_of_its_session(browser: httpx.Client, server: RunningServer) -> None:
    sign_in(browser)
    own = csrf(browser)
    with httpx.Client(base_url=server.url) as other:
        sign_in(other)
        foreign = csrf(other)
    assert foreign != own
    for data, headers in (
        ({}, {}),
        ({"csrf": ""}, {}),
        ({"csrf": foreign}, {}),
        ({"csrf": own[:-1]}, {}),
        ({"csrf": "é"}, {}),
        ({}, {"X-CSRF-Token": foreign}),
        ({"csrf": own}, {"Sec-Fetch-Site": "cross-site"}),
        ({"csrf": own}, {"Origin": "https://evil.example"}),
    ):
        for path in ("/sign-out", "/sign-out/everywhere"):
            response = browser.post(path, data=data, headers={"Accept": "application/json", **headers})
            assert (response.status_code, response.json()["code"]) == (403, "foreign-form"), (data, headers)
    assert signed_in(browser)
    assert browser.post("/sign-out", headers={"X-CSRF-Token": own}).status_code == 303
    assert not signed_in(browser)


def test_a_cookie_lets_nobody_into_the_api(browser: httpx.Client) -> None:
    sign_in(browser)
    assert browser.get("/api/v1/analyses").status_code == 401


def test_a_token_opens_pages_as_far_as_it_may(browser: httpx.Client, server: RunningServer, database: Database) -> None:
    tokens = TokenService(database, server.settings)
    created = tokens.create("reader", ["read"])
    assert browser.post("/sign-in", data={"token": f"  {created.text} "}).status_code == 303
    assert signed_in(browser)
    assert browser.get("/installation").status_code == 403
    tokens.revoke(created.info.id)
    assert not signed_in(browser)
