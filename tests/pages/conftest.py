"""A real browser in front of a real server.

Chromium comes from the system: Playwright's own download is not needed. Every page that a test opens must stay silent:
an error on the console, a refused resource or a failed request fails the test, which also proves the content policy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from services.settings import Settings
from tests.serving import RunningServer, Workshop, token

# Milliseconds in which a page has to come or to change, on a machine that does a lot besides: whoever looks is not
# what is tested, and a page that is right is seen at once.
PATIENCE: Final = 60_000

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


# For one file of tests, not for all: while Playwright is open, its thread has an event loop that is running, and the
# tests of other rooms that follow in the same process could not run one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    assert found, f"a browser is needed for these tests: none of {', '.join(_NAMES)} is in PATH"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def server(embedded_settings: Settings) -> Iterator[RunningServer]:
    with RunningServer(embedded_settings) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token(server.settings)}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as opened:
        yield opened


@pytest.fixture
def workshop(embedded_settings: Settings) -> Iterator[Workshop]:
    opened = Workshop(embedded_settings)
    yield opened
    opened.close()


# Not every violation of the content policy is written on the console by the browser itself.
_TELLS_VIOLATIONS = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`content policy: ${event.violatedDirective} ${event.blockedURI}`));"""


class Window:
    """A browser window with a session, which notes everything that a browser complains about."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = base
        self.complaints: list[str] = []
        self.context = context
        self.page: Page = context.new_page()
        self.page.add_init_script(_TELLS_VIOLATIONS)
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._response)

    def open(self, path: str) -> Response:
        """Go to a path of the server."""
        response = self.page.goto(self.base + path)
        assert response is not None
        return response

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # what was still on its way when the page was left
            self.complaints.append(f"failed: {request.url} ({request.failure})")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.request.resource_type != "document":
            self.complaints.append(f"{response.status}: {response.url}")


@pytest.fixture
def open_window(browser: Browser, server: RunningServer) -> Iterator[Any]:
    """`open_window(signed_in=True, **options)`: a new window; `options` are those of a Playwright context."""
    windows: list[Window] = []

    def make(*, signed_in: bool = True, **options: Any) -> Window:
        window = Window(browser.new_context(**options), server.url)
        windows.append(window)
        if signed_in:
            window.open("/sign-in")
            window.page.get_by_label("API token").fill(token(server.settings, "read"))
            window.page.get_by_role("button", name="Sign in").click()
            window.page.wait_for_url(f"{server.url}/")
        return window

    yield make
    complaints = [complaint for window in windows for complaint in window.complaints]
    for window in windows:
        window.context.close()
    assert complaints == []
