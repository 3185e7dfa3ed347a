"""The sign-in page in a browser: what it offers, what it says to the first visitor, what it says when it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from services.accounts.access import SYSTEM
from services.accounts.users import UserService
from services.database import Database
from services.settings import Settings
from tests.pages.conftest import Window
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, refusal, shows
from tests.serving import RunningServer

PASSWORD = "quite a long word 7"


@pytest.fixture
def with_account(embedded_settings: Settings) -> None:
    database = Database.open(embedded_settings, lambda _queue: None)
    UserService(database).create(SYSTEM, "ada", password=PASSWORD)
    database.close()


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_first_visitor_is_told_how_to_get_in(open_window: Any, options: dict[str, Any]) -> None:
    window = open_window(signed_in=False, **options)
    window.open("/sign-in")
    expect(window.page.get_by_label("API token")).to_be_visible()
    expect(window.page.get_by_label("Password")).to_have_count(0)
    hints = window.page.get_by_role("region", name="The first time here?").inner_text()
    for command in ("gradproof serve", "gradproof user create", "gradproof token create"):
        assert command in hints
    assert_well_made(window.page)


@pytest.mark.usefixtures("with_account")
@pytest.mark.parametrize("options", [*LOOKS.values(), NO_SCRIPT], ids=[*LOOKS, "no script"])
def test_one_signs_in_by_password_and_goes_where_one_wanted(open_window: Any, options: dict[str, Any]) -> None:
    window = open_window(signed_in=False, **options)
    page = window.page
    window.open("/inbox")
    assert page.url == f"{window.base}/sign-in?next=/inbox"
    if options is not NO_SCRIPT:
        assert_well_made(page)
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    with refusal(window):
        follow(page.get_by_role("button", name="Sign in", exact=True))
        shows(page.get_by_role("alert"), "do not belong together")
    expect(page.get_by_label("Name")).to_have_value("ada")
    expect(page.get_by_label("Password")).to_have_value("")
    if options is not NO_SCRIPT:
        assert_well_made(page)
    page.get_by_label("Password").fill(PASSWORD)
    follow(page.get_by_role("button", name="Sign in", exact=True))
    page.wait_for_url(f"{window.base}/inbox")
    expect(page.get_by_text("ada", exact=True)).to_be_visible()
    page.get_by_text("ada", exact=True).click()
    expect(page.get_by_role("link", name="Your settings")).to_be_visible()
    expect(page.get_by_role("link", name="Installation")).to_have_count(0)
    if options is not NO_SCRIPT:
        assert_well_made(page)


@pytest.mark.usefixtures("with_account")
def test_an_identity_provider_comes_first_and_a_token_last(browser: Browser, embedded_settings: Settings) -> None:
    settings = embedded_settings.model_copy(
        update={"oidc_issuer": "https://id.example.com", "oidc_client_id": "gradproof", "oidc_name": "Example ID"}
    )
    with RunningServer(settings) as server:
        window = Window(browser.new_context(), server.url)
        window.open("/sign-in?next=/workers")
        page = window.page
        way = page.get_by_role("link", name="Continue with Example ID")
        expect(way).to_have_attribute("href", "/openid/sign-in?next=/workers")
        expect(page.get_by_label("API token")).to_be_hidden()
        page.get_by_text("Use an API token instead").click()
        expect(page.get_by_label("API token")).to_be_visible()
        assert_well_made(page)
        window.context.close()
        assert window.complaints == []
