"""How every page must be, whatever it shows, and the ways of looking at it that tests try."""

from __future__ import annotations

from typing import Any, Final

import httpx
from axe_playwright_python.sync_playwright import Axe

from tests.serving import RunningServer, token

LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
NO_SCRIPT: Final[dict[str, Any]] = {"java_script_enabled": False}


def assert_well_made(page: Any) -> None:
    """Accessible as far as axe can see, and no wider than the window: tables and code scroll for themselves."""
    results = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def signed_in(server: RunningServer, *scopes: str) -> httpx.Client:
    """A browser without a window, signed in with a token; it asks for pages."""
    session = httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=30)
    answer = session.post("/sign-in", data={"token": token(server.settings, *(scopes or ("admin",)))})
    assert answer.status_code == 303, answer.text
    return session
