"""The pages that only look, in a browser: workers and pull requests, and what stands in the way of either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from services.database import Database
from services.database.base import utc_now
from services.settings import Settings
from tests.pages.looks import LOOKS, assert_well_made, shows, signed_in
from tests.serving import RunningServer
from tests.team_rows import Rows, days_ago

HOSTILE = "\u202e<script>alert(1)</script> **bold** \x1b[31mred"


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_workers_page_says_who_works_and_what_waits(open_window: Any, rows: Rows, options: dict[str, Any]) -> None:
    window = open_window(**options)
    window.open("/workers")
    expect(window.page.get_by_text("No worker runs and nothing waits")).to_be_visible()
    assert_well_made(window.page)
    analysis = rows.analysis(rows.project("vision"), passed=None)
    rows.job(analysis, queue="gpu.cuda", device_class="cuda", created_at=days_ago(0.1))
    rows.job(analysis, losses=1, attempt=2, state="infra_failed", reason=HOSTILE, finished_at=utc_now())
    rows.worker("one", ["cpu", "control"])
    device = {"id": "GPU-1", "name": "NVIDIA H200", "state": "out of service", "detail": "double bit errors"}
    rows.worker("two", ["gpu.mig"], device=device)
    window.open("/workers")
    page = window.page
    expect(page.get_by_text("no worker serves it")).to_be_visible()
    shows(page.get_by_role("table", name="Devices"), "double bit errors")
    shows(page.get_by_role("table", name="Lost leases"), "[U+202E]<script>")
    expect(page.get_by_role("table", name="Analyses under way").get_by_role("link", name=analysis)).to_be_visible()
    assert_well_made(page)


def test_the_workers_page_keeps_itself_fresh(open_window: Any, rows: Rows) -> None:
    window = open_window()
    window.open("/workers")
    rows.worker("late", ["cpu"])
    window.page.get_by_text("late.example, process 4711").first.wait_for()


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_page_of_a_pull_request_says_why_it_is_silent(
    open_window: Any, rows: Rows, options: dict[str, Any]
) -> None:
    project = rows.project("vision")
    request = rows.pull_request(
        rows.repository(project),
        title=HOSTILE,
        number=7,
        is_fork=True,
        analysis_id=rows.analysis(project, passed=False),
        base_analysis_id=rows.analysis(project),
        check_sha="d" * 40,
        check_id="1",
        check_state="completed",
        summary_id="2",
        summary_removed_at=utc_now(),
        silence={"inline": "no new finding is on an added line", "sarif": "the project does not ask for it"},
    )
    rows.thread(request, state="kept")
    rows.step(request, event="pull_request synchronize", reason="the head was superseded")
    window = open_window(**options)
    window.open(f"/pull-requests/{request}")
    page = window.page
    expect(page.get_by_text("Gradproof is silent here: the check is on dddddddddd")).to_be_visible()
    written = page.get_by_role("table", name="What was written").inner_text()
    assert "a person deleted our comment, which is respected" in written
    assert "no new finding is on an added line" in written
    expect(page.get_by_text("kept for a person")).to_be_visible()
    assert page.get_by_role("link", name="What the change brings").get_attribute("href")
    expect(page.get_by_role("link", name="Open it at GitHub")).to_have_attribute(
        "href", "https://github.com/example/vision/pull/7"
    )
    shows(page.get_by_role("heading", level=1), "[U+202E]<script>")
    assert_well_made(page)


def test_a_pull_request_that_is_not_there_is_a_404(server: RunningServer) -> None:
    session = signed_in(server)
    for name in ("nothing", "0" * 27, "%00"):
        assert session.get(f"/pull-requests/{name}").status_code == 404
