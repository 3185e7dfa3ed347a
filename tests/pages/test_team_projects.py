"""The pages of projects in a browser: the list, a new one, how one stands, and that foreign ones are not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from services.database import Database
from services.database.base import utc_now
from services.settings import Settings
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, open_as, reads, refusal, shows, signed_in
from tests.serving import RunningServer
from tests.team_rows import Rows, days_ago, totals

HOSTILE = "\u202e<script>alert(1)</script>"


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


def lived_in(rows: Rows, name: str = "vision") -> str:
    """A project that has been analysed a few times, with findings and a pull request."""
    project = rows.project(name, repository_url="https://github.com/example/vision", default_branch="main")
    for day in range(12):
        newest = rows.analysis(
            project, passed=day == 11, created_at=days_ago(12 - day), totals=totals(error=12 - day, failing=day % 3)
        )
    for severity in ("error", "error", "warning"):
        rows.finding(project, severity=severity)
    repository = rows.repository(project)
    rows.pull_request(repository, number=7, title=HOSTILE, analysis_id=newest, silence={"summary": "nothing is new"})
    return project


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_list_shows_how_each_project_stands(open_window: Any, rows: Rows, options: dict[str, Any]) -> None:
    project = lived_in(rows)
    rows.project("quiet")
    rows.project("old", archived_at=utc_now())
    window = open_window(**options)
    window.open("/")
    page = window.page
    line = page.get_by_role("row", name="vision")
    expect(line.get_by_text("passed")).to_be_visible()
    expect(line.get_by_role("link", name="2 errors")).to_have_attribute(
        "href", f"/projects/{project}/findings?severity=error"
    )
    assert "from 12 to 1" in str(line.get_by_role("img").get_attribute("aria-label"))
    expect(page.get_by_role("row", name="quiet").get_by_text("not analysed")).to_be_visible()
    expect(page.get_by_role("row", name="old")).to_have_count(0)
    assert_well_made(page)
    page.get_by_label("Name").fill("QUI")
    page.get_by_label("Name").press("Enter")
    page.wait_for_url("**/?q=QUI")
    expect(page.locator("tbody tr")).to_have_count(1)
    follow(page.get_by_role("link", name="Clear"))
    page.get_by_label("archived ones").check()
    follow(page.get_by_role("button", name="Apply"))
    page.get_by_role("link", name="old").wait_for()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_projects_come_page_by_page(open_window: Any, rows: Rows) -> None:
    for number in range(25):
        rows.project(f"project-{number:02}")
    window = open_window()
    window.open("/")
    expect(window.page.locator("tbody tr")).to_have_count(20)
    follow(window.page.get_by_role("link", name="Next"))
    window.page.get_by_role("link", name="project-24").wait_for()
    expect(window.page.locator("tbody tr")).to_have_count(5)
    follow(window.page.get_by_role("link", name="First"))
    window.page.get_by_role("link", name="project-00").wait_for()


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_first_visit_says_what_to_do(open_window: Any, rows: Rows, options: dict[str, Any]) -> None:
    window = open_window(**options)
    window.open("/")
    expect(window.page.get_by_text("No project yet")).to_be_visible()
    assert "gradproof submit" in window.page.content()
    expect(window.page.get_by_role("link", name="Look at the analyses")).to_have_count(0)
    assert_well_made(window.page)
    rows.analysis(None)
    window.open("/")
    follow(window.page.get_by_role("link", name="Look at the analyses"))
    window.page.wait_for_url(f"{window.base}/analyses")


@pytest.mark.parametrize("options", [*LOOKS.values(), NO_SCRIPT], ids=[*LOOKS, "no script"])
def test_a_project_shows_trend_gate_analyses_coverage_and_pull_requests(
    open_window: Any, rows: Rows, options: dict[str, Any]
) -> None:
    project = lived_in(rows)
    window = open_window(**options)
    window.open(f"/projects/{project}")
    page = window.page
    reads(page.get_by_role("heading", level=1), "vision")
    expect(page.get_by_text("no new error")).to_be_visible()
    assert page.get_by_role("link", name="open errors").inner_text().startswith("2")
    expect(page.get_by_text("11 of 14 targets were run")).to_be_visible()
    expect(page.get_by_role("row", name="needs data")).to_be_visible()
    expect(page.get_by_role("link", name="[U+202E]<script>")).to_be_visible()
    expect(page.locator("tbody").get_by_role("link", name="with the one before")).to_have_count(9)
    if options is NO_SCRIPT:
        expect(page.get_by_role("group", name="Open findings on the main line, as a table")).to_be_visible()
        return
    page.locator(".chart canvas").first.wait_for()
    assert page.evaluate("document.querySelector('img[src^=\"/badges/\"]').naturalWidth") > 0
    assert_well_made(page)
    follow(page.get_by_role("link", name="Next").first)
    page.wait_for_url("**?before=*")
    expect(page.get_by_role("table", name="Analyses").locator("tbody tr")).to_have_count(2)


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_a_project_without_an_analysis_says_how_to_get_one(
    open_window: Any, rows: Rows, options: dict[str, Any]
) -> None:
    project = rows.project("quiet")
    window = open_window(**options)
    window.open(f"/projects/{project}")
    expect(window.page.get_by_text("Not analysed yet")).to_be_visible()
    assert "--project quiet" in window.page.content()
    assert_well_made(window.page)


@pytest.mark.parametrize("options", [{}, NO_SCRIPT], ids=["script", "no script"])
def test_a_project_is_made_and_what_is_wrong_with_its_name_is_said(
    open_window: Any, server: RunningServer, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    window.open("/")
    page = window.page
    follow(page.get_by_role("link", name="New project"))
    page.get_by_label("Name").fill("with space")
    page.get_by_label("Main branch").fill("trunk")
    with refusal(window):
        follow(page.get_by_role("button", name="Make the project"))
        shows(page.get_by_role("alert"), "letters, digits")
    expect(page.get_by_label("Main branch")).to_have_value("trunk")
    page.get_by_label("Name").fill("vision")
    follow(page.get_by_role("button", name="Make the project"))
    page.wait_for_url("**/projects/*")
    reads(page.get_by_role("heading", level=1), "vision")
    shows(page.get_by_role("alert"), "vision is there")
    page.reload()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_names_lead_to_projects_and_foreign_ones_are_nothing(server: RunningServer, rows: Rows) -> None:
    mine, foreign = rows.project("mine"), rows.project("acme/foreign", organisation_id=rows.organisation("acme"))
    operator = signed_in(server)
    assert operator.get("/projects/mine").headers["location"] == f"/projects/{mine}"
    assert operator.get("/projects/acme/foreign").headers["location"] == f"/projects/{foreign}"
    assert operator.get("/projects").headers["location"] == "/"
    member = signed_in(server, user=rows.user("u", "viewer", project=mine))
    assert member.get(f"/projects/{mine}").status_code == 200
    assert "foreign" not in member.get("/").text
    for path in (f"/projects/{foreign}", "/projects/acme/foreign", "/projects/nothing", "/projects/%00"):
        assert member.get(path).status_code == 404


def test_the_badge_is_seen_by_whoever_has_its_address_and_by_nobody_else(server: RunningServer, rows: Rows) -> None:
    project = lived_in(rows)
    address = signed_in(server).get(f"/projects/{project}").text.partition('src="/badges/')[2].partition('"')[0]
    answer = httpx.get(f"{server.url}/badges/{address}")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "Gradproof: passed" in answer.text
    for wrong in (address.replace(".svg", "0.svg"), f"{project}/{'0' * 32}.svg", address.replace(project, "0" * 27)):
        assert httpx.get(f"{server.url}/badges/{wrong}").status_code == 404
