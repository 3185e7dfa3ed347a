"""Deciding about a finding on its page, comparing two analyses, and sharing one by a link; in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from services.accounts import TokenService
from services.analyses.models import AnalysisRow
from services.database import Database
from services.settings import Settings
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, open_as, reads, refusal, shows, signed_in
from tests.reports.samples import HOSTILE_TEXTS, check, failing
from tests.serving import MODULE, RunningServer, Workshop, upload
from tests.team_rows import Rows

BETTER = MODULE.replace("x / x.norm()", "x / (x.norm() + 1)")
FILES = {"pkg/__init__.py": "", "pkg/a.py": MODULE}


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


@pytest.fixture
def project(rows: Rows) -> str:
    return rows.project("vision")


def analysed(
    client: httpx.Client, workshop: Workshop, *results: Any, files: dict[str, str] | None = None, **data: str
) -> str:
    """The id of an analysis of the project; without results of a failing check."""
    sent = {"project": "vision", **data}
    identity = client.post("/api/v1/analyses", files=upload(files or FILES), data=sent).json()["id"]
    workshop.read()
    workshop.probe(*(results or (failing(path="pkg/a.py", line=6),)))
    return str(identity)


def first_finding(client: httpx.Client, identity: str) -> str:
    """The address of the first finding."""
    items = client.get(f"/api/v1/analyses/{identity}/findings").json()["items"]
    return f"/analyses/{identity}/findings/{items[0]['fingerprint']}"


# ---------------------------------------------------------------------------------------------------- deciding


@pytest.mark.parametrize("options", [LOOKS["light"], NO_SCRIPT], ids=["with scripts", "without"])
@pytest.mark.usefixtures("project")
def test_a_finding_is_accepted_until_a_day_and_that_is_undone(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    address = first_finding(client, analysed(client, workshop))
    window = open_as(open_window, server, **options)
    window.open(address)
    page = window.page
    decision = page.get_by_role("region", name="Decision")
    decision.get_by_label("Reason").fill("rows are never zero, see `Norm`")
    decision.get_by_text("Accept for a limited time").click()
    decision.get_by_label("until this day (UTC)").fill("2031-01-31")
    follow(decision.get_by_role("button", name="Accept", exact=True))
    page.get_by_role("alert").wait_for()
    assert page.url.endswith(address)
    shows(decision, "rows are never zero, see Norm")
    shows(decision, "2031-02-01 00:00 UTC")
    history = page.get_by_role("region", name="History").get_by_role("listitem")
    assert history.first.inner_text().startswith("accepted")
    follow(page.get_by_role("button", name="Undo: open it again"))
    history.get_by_text("reopened").wait_for()
    shows(decision, "open")


@pytest.mark.usefixtures("project")
def test_a_reason_is_asked_for_and_a_comment_is_kept(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    address = first_finding(client, analysed(client, workshop))
    window = open_as(open_window, server)
    window.open(address)
    page = window.page
    follow(page.get_by_role("button", name="False positive"))
    shows(page.get_by_role("alert"), "reason")
    text = " ".join(HOSTILE_TEXTS)
    page.get_by_label("Comment").fill(text)
    follow(page.get_by_role("button", name="Comment", exact=True))
    comment = page.get_by_role("region", name="History").locator(".event-text")
    comment.wait_for()
    shows(comment, "<script>alert(1)</script>")
    shows(comment, "[U+202E]")
    assert_well_made(page)


def test_a_finding_is_given_to_a_member(
    *, open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, rows: Rows, project: str
) -> None:
    rows.user("bob", "triager", project=project)
    address = first_finding(client, analysed(client, workshop))
    window = open_as(open_window, server, **NO_SCRIPT)
    window.open(address)
    window.page.get_by_label("Assign to").select_option(label="Bob")
    follow(window.page.get_by_role("button", name="Assign"))
    window.page.get_by_role("region", name="History").get_by_text("assigned").wait_for()
    shows(window.page.get_by_role("region", name="Decision"), "assigned to bob")


def test_whoever_brought_a_finding_in_is_offered_for_it(
    server: RunningServer, workshop: Workshop, rows: Rows, project: str
) -> None:
    visitor = signed_in(server, user=rows.user("bob", "triager", project=project))
    asking = TokenService(rows.database, server.settings).create("laptop", ["submit"], user="bob").text
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {asking}"}, timeout=30) as bobs:
        page = visitor.get(first_finding(bobs, analysed(bobs, workshop))).text
    assert "submitted the analysis that first showed it; who wrote the line is not known" in page
    assert re.search(r'<option value="\w+" selected>Bob</option>', page)


def test_code_owners_and_the_last_committer_are_named_and_the_first_member_is_offered(
    server: RunningServer, client: httpx.Client, workshop: Workshop, rows: Rows, project: str
) -> None:
    visitor = signed_in(server, user=rows.user("bob", "triager", project=project))
    rows.user("ada", "triager", project=project)
    files = {"pkg/a.py": MODULE, "CODEOWNERS": "*.py @org/team @ada\n"}
    analysis = analysed(client, workshop, files=files)
    with rows.database.unit_of_work() as uow:
        row = uow.session.get_one(AnalysisRow, analysis)
        row.source_author, row.source_author_email, row.source_commit = "Bob <b>", "bob@example.org", "c" * 40
    page = visitor.get(first_finding(client, analysis)).text
    parts = re.findall(r'<dt>(code owner|brought in by)</dt><dd>(.*?)</dd><dd class="small">', page)
    assert parts == [
        ("code owner", '@org/team <span class="small">(no member)</span></dd><dd>@ada'),
        ("brought in by", 'Bob &lt;b&gt; <span class="small">(no member)</span>'),
    ]
    assert re.search(r'<option value="\w+" selected>Ada</option>', page)


def test_a_viewer_reads_the_decision_and_is_offered_no_form(
    server: RunningServer, client: httpx.Client, workshop: Workshop, rows: Rows, project: str
) -> None:
    address = first_finding(client, analysed(client, workshop))
    visitor = signed_in(server, user=rows.user("vera", "viewer", project=project))
    page = visitor.get(address)
    assert page.status_code == 200
    assert "Triagers and maintainers of the project decide" in page.text
    assert "/decide" not in page.text
    assert 'name="text"' not in page.text


# ---------------------------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
@pytest.mark.usefixtures("project")
def test_two_analyses_are_compared(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    base = analysed(client, workshop, failing(path="pkg/a.py", line=6), check(check="hvp"))
    files = {"pkg/__init__.py": "", "pkg/a.py": BETTER, "pkg/b.py": MODULE}
    head = analysed(client, workshop, check(), check(check="hvp"), files=files, base=base)
    window = open_as(open_window, server, **options)
    window.open(f"/analyses/{head}")
    page = window.page
    page.get_by_text("Compare", exact=True).click()
    follow(page.get_by_role("button", name="Show what changed"))
    page.get_by_role("heading", level=1, name="What changed").wait_for()
    shows(page.get_by_role("list", name="New findings"), "pkg/b.py:6")
    shows(page.get_by_role("list", name="Fixed findings"), "pkg/a.py:6")
    changed = page.get_by_role("table", name="Checks with another verdict").get_by_role("row").all_inner_texts()
    assert any("pkg.a:Norm" in row and "fail" in row and "pass" in row for row in changed)
    page.get_by_text("2 results of checks that ran on one side only").click()
    changed = page.get_by_role("table", name="Checks that ran on one side only").get_by_role("row").all_inner_texts()
    assert all("pkg.b:Norm" in row and "did not run" in row for row in changed[1:])
    assert_well_made(page)
    follow(page.get_by_role("link", name="The other way round"))
    shows(page.get_by_role("list", name="New findings"), "pkg/a.py:6")
    window.open(f"/compare?base={base}&head={base}")
    expect(page.get_by_text("Nothing changed")).to_be_visible()


def test_what_is_compared_has_to_be_there(client: httpx.Client, workshop: Workshop, server: RunningServer) -> None:
    identity = analysed(client, workshop)
    visitor = signed_in(server)
    nothing = "1" * 26
    assert visitor.get(f"/compare?base={identity}&head={nothing}").status_code == 404
    assert visitor.get(f"/compare?base={identity}").status_code == 422
    moved = visitor.get(f"/analyses/{identity}/compare?base={identity}")
    assert moved.headers["location"] == f"/compare?base={identity}&head={identity}"


# ---------------------------------------------------------------------------------------------------- sharing


@pytest.mark.usefixtures("project")
def test_a_link_shows_one_analysis_to_whoever_has_it_until_it_is_revoked(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    identity, other = analysed(client, workshop), analysed(client, workshop)
    owner = open_as(open_window, server)
    owner.open(f"/analyses/{identity}")
    follow(owner.page.get_by_role("link", name="Share"))
    follow(owner.page.get_by_role("button", name="Make a link"))
    owner.page.get_by_role("alert").wait_for()
    assert_well_made(owner.page)
    link = owner.page.get_by_role("article").locator("code").inner_text()
    base = httpx.URL(link).path

    guest = open_window(signed_in=False, **LOOKS["dark phone"])
    guest.open(base)
    page = guest.page
    reads(page.get_by_role("heading", level=1), "Failed")
    expect(page.get_by_text("Run again")).to_have_count(0)
    expect(page.get_by_text("Download report")).to_have_count(0)
    assert_well_made(page)
    follow(page.get_by_role("list", name="Findings").get_by_role("link").first)
    shows(page.get_by_role("region", name="Where"), "return x / x.norm()")
    expect(page.get_by_role("region", name="Decision")).to_have_count(0)
    inside = page.locator('a[href^="/"]').evaluate_all("links => links.map(link => link.getAttribute('href'))")
    public = ("/rules", "/checks/", "/sign-in", "/openapi.json")
    assert [address for address in inside if not address.startswith((base, *public)) and address != "/"] == []
    for tab in ("Targets", "Left out", "About this run"):
        guest.open(base)
        follow(page.get_by_role("navigation", name="Parts of the analysis").get_by_role("link", name=tab))
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
    with refusal(guest):
        for hidden in (f"/analyses/{identity}", f"{base[:-1]}0", f"/shared/{other}"):
            response = guest.open(hidden)
            assert response.status == 404 or "/sign-in" in page.url

    owner.page.get_by_text("Revoke", exact=True).click()
    follow(owner.page.get_by_role("button", name="Revoke the link"))
    owner.page.get_by_role("alert").wait_for()
    with refusal(guest):
        assert guest.open(base).status == 404
        assert guest.open(f"{base}/findings").status == 404


def test_who_may_only_read_shares_nothing(
    server: RunningServer, client: httpx.Client, workshop: Workshop, rows: Rows, project: str
) -> None:
    identity = analysed(client, workshop)
    visitor = signed_in(server, user=rows.user("vera", "viewer", project=project))
    assert visitor.get(f"/analyses/{identity}/shares").status_code == 403
    assert "/shares" not in visitor.get(f"/analyses/{identity}").text
