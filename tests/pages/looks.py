"""How every page must be, whatever it shows, and the ways of looking at it that tests try."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, expect

from api.pages.sessions import COOKIE
from services.accounts import TokenService
from services.accounts.models import UserRow
from services.accounts.sessions import SessionService
from services.accounts.users import subject_of_user
from services.database import Database
from tests.serving import RunningServer, token

LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
# What axe looks for; what is right is not written down, which is most of its time.
AXE: Final = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
}
NO_SCRIPT: Final[dict[str, Any]] = {"java_script_enabled": False}


def assert_well_made(page: Any) -> None:
    """Accessible as far as axe can see, and no wider than the window: tables and code scroll for themselves."""
    results = Axe().run(page, options=AXE)
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    # Axe no longer looks for them, and a label leads to the first.
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids)), [name for name in ids if ids.count(name) > 1]


def follow(target: Locator) -> None:
    """Click what asks for a page, and wait until that page is there: nothing is read off the one that is left."""
    with target.page.expect_navigation():
        target.click()


def reads(place: Locator, text: str) -> None:
    """A person sees exactly this here, now or soon."""
    expect(place).to_have_text(text, use_inner_text=True)


def shows(place: Locator, text: str) -> None:
    """A person sees this here, among other things, now or soon."""
    expect(place).to_contain_text(text, use_inner_text=True)


def signed_in(server: RunningServer, *, user: str | None = None, scope: str = "admin") -> httpx.Client:
    """A browser without a window, signed in as a user or else with a token of the installation; it asks for pages."""
    session = httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=30)
    session.cookies.set(COOKIE, _session(server, user, scope))
    return session


def sent(session: httpx.Client, path: str, **fields: str | list[str]) -> httpx.Response:
    """The answer to a form of a page of this session."""
    key = re.search(r'name="csrf" value="([^"]+)"', session.get("/me").text)
    assert key is not None
    return session.post(path, data={"csrf": key[1], **fields})


def open_as(
    open_window: Any, server: RunningServer, *, user: str | None = None, scope: str = "admin", **options: Any
) -> Any:
    """A window, signed in as a user or else with a token of the installation."""
    window = open_window(signed_in=False, **options)
    window.context.add_cookies([{"name": COOKIE, "value": _session(server, user, scope), "url": server.url}])
    return window


def _session(server: RunningServer, user: str | None, scope: str) -> str:
    database = Database.open(server.settings, lambda _queue: None)
    try:
        sessions = SessionService(database, server.settings)
        if user is not None:
            with database.reading() as session:
                return sessions.begin(subject_of_user(session.get_one(UserRow, user)))
        subject = TokenService(database, server.settings).authenticate(token(server.settings, scope))
        assert subject is not None
        return sessions.begin(subject, how="token")
    finally:
        database.close()


@contextmanager
def refusal(window: Any) -> Iterator[None]:
    """What the browser complains about in here is the refusal that the test wants to see."""
    before = list(window.complaints)
    yield
    window.complaints[:] = before
