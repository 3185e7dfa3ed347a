"""The inbox in a browser: what it shows, every decision by mouse, by keys and without scripts, and undoing it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from analyzer.registry import all_rules
from services.accounts.access import SYSTEM
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings
from services.triage.inbox import Inbox
from services.triage.model import ProjectFinding
from tests.pages.looks import (
    LOOKS,
    NO_SCRIPT,
    assert_well_made,
    follow,
    open_as,
    reads,
    refusal,
    sent,
    shows,
    signed_in,
)
from tests.serving import RunningServer
from tests.team_rows import Rows

HOSTILE = "\u202e<script>alert(1)</script> `code` **bold** \x1b[31m"
BOTH = pytest.mark.parametrize("options", [{}, NO_SCRIPT], ids=["script", "no script"])


@dataclass(frozen=True, slots=True)
class Team:
    """A project, and a triager of it."""

    rows: Rows
    project: str
    bob: str


@pytest.fixture
def team(embedded_settings: Settings) -> Iterator[Team]:
    database = Database.open(embedded_settings, lambda _queue: None)
    rows = Rows(database)
    yield Team(rows, rows.project("vision"), rows.user("bob", "triager"))
    database.close()


def finding_of(rows: Rows, project: str, fingerprint: str) -> ProjectFinding:
    return Inbox(rows.database).finding(SYSTEM, project, fingerprint)


def states(rows: Rows, project: str, *fingerprints: str) -> list[str]:
    return [finding_of(rows, project, fingerprint).state for fingerprint in fingerprints]


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_inbox_holds_what_is_to_be_decided_the_gravest_first(
    open_window: Any, server: RunningServer, team: Team, options: dict[str, Any]
) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    other = rows.project("audio")
    rows.finding(project, severity="note", message=HOSTILE, path="pkg/\u202ea.py", symbol=HOSTILE)
    rows.finding(other, severity="error", state="regressed", assignee_id=bob, assignee_name="bob")
    rows.finding(project, state="accepted", reason=HOSTILE)
    rows.finding(project, severity="warning", on_main=False)
    window = open_as(open_window, server, user=bob, **options)
    page = window.page
    window.open("/inbox")
    found = page.locator("[data-row]")
    expect(found).to_have_count(3)
    assert ["audio" in text for text in found.all_inner_texts()] == [True, False, False]
    shows(found.first, "for bob")
    shows(found.nth(1), "not on main")
    shows(found.nth(2), "[U+202E]<script>")
    expect(page.locator("main script, main b")).to_have_count(0)
    assert_well_made(page)
    window.open("/inbox?state=any")
    expect(found).to_have_count(4)
    shows(page.locator("main"), "[U+202E]<script>")
    assert_well_made(page)


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_an_empty_inbox_says_why(open_window: Any, server: RunningServer, team: Team, options: dict[str, Any]) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    window = open_as(open_window, server, user=bob, **options)
    page = window.page
    window.open("/inbox")
    shows(page.locator(".empty"), "as soon as an analysis of a project of yours")
    assert_well_made(page)
    rows.finding(project, state="fixed")
    window.open(f"/projects/{project}/findings")
    follow(page.get_by_role("link", name="Look at what was decided or fixed"))
    page.locator("[data-row]").wait_for()
    window.open("/inbox?severity=note")
    follow(page.get_by_role("link", name="Clear the filters"))
    page.wait_for_url(f"{window.base}/inbox")


@BOTH
def test_filters_narrow_and_say_how_many_there_are(
    open_window: Any, server: RunningServer, team: Team, options: dict[str, Any]
) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    for number in range(3):
        rows.finding(project, rule="GP101", path=f"pkg/a{number}.py")
    name = next(rule.name for rule in all_rules() if rule.id == "GP203")
    wanted = rows.finding(project, rule="GP203", name=name, severity="warning", path="lib/b.py",
                          verdict="static_only", assignee_id=bob, assignee_name="bob")  # fmt: skip
    window = open_as(open_window, server, user=bob, **options)
    page = window.page
    window.open(f"/projects/{project}/findings")
    for label, value, told in (("Severity", "warning", "warning (1)"), ("Verdict", "static_only", "static only (1)"),
                               ("Rule", "GP203", f"GP203 {name} (1)"), ("Assignee", bob, "bob (1)")):  # fmt: skip
        shows(page.get_by_label(label, exact=True), told)
        page.get_by_label(label, exact=True).select_option(value)
        follow(page.get_by_role("button", name="Apply"))
        page.wait_for_url("**?*")
        expect(page.locator("[data-row]")).to_have_count(1)
        follow(page.get_by_role("link", name="Clear", exact=True))
        page.wait_for_url("**/findings")
    page.get_by_label("Text").fill("LIB/B")
    page.get_by_label("Text").press("Enter")
    page.wait_for_url("**?text=*")
    expect(page.locator("[data-row] a").first).to_have_attribute("href", f"/projects/{project}/findings/{wanted}")


def test_findings_come_page_by_page(open_window: Any, server: RunningServer, team: Team) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    for number in range(45):
        rows.finding(project, severity=("error", "warning")[number % 2])
    window = open_as(open_window, server, user=bob)
    window.open("/inbox?rule=GP101")
    expect(window.page.locator("[data-row]")).to_have_count(40)
    follow(window.page.get_by_role("link", name="Next"))
    window.page.wait_for_url("**before=*")
    expect(window.page.locator("[data-row]")).to_have_count(5)
    assert "rule=GP101" in window.page.url
    follow(window.page.get_by_role("link", name="First"))
    window.page.wait_for_url("**/inbox?rule=GP101")


@BOTH
def test_findings_are_accepted_together_and_that_is_undone(
    open_window: Any, server: RunningServer, team: Team, options: dict[str, Any]
) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    other = rows.project("audio")
    first, second, third = rows.finding(project), rows.finding(project), rows.finding(other)
    window = open_as(open_window, server, user=bob, **options)
    page = window.page
    window.open("/inbox?severity=error")
    page.locator("[data-row]").filter(has_text="audio").get_by_role("checkbox").check()
    page.get_by_label(f"pkg/a.py:{finding_of(rows, project, first).line}", exact=False).check()
    if not options:
        expect(page.get_by_text("2 of 3 selected")).to_be_visible()
    follow(page.get_by_role("button", name="Accept", exact=True))
    reads(page.get_by_role("alert"), "A reason is required.")
    assert states(rows, project, first) == ["open"]
    page.locator("[data-row]").filter(has_text="audio").get_by_role("checkbox").check()
    page.get_by_label(f"pkg/a.py:{finding_of(rows, project, first).line}", exact=False).check()
    page.get_by_label("Reason").fill("eps is added by the caller")
    page.get_by_text("Accept for a limited time").click()
    page.get_by_label("until this day (UTC)").fill((utc_now() + timedelta(days=30)).strftime("%Y-%m-%d"))
    page.get_by_label("for so many further analyses").fill("5")
    follow(page.get_by_role("button", name="Accept", exact=True))
    page.wait_for_url(f"{window.base}/inbox?severity=error")
    shows(page.get_by_role("alert"), "2 findings are accepted.")
    expect(page.locator("[data-row]")).to_have_count(1)
    kept = finding_of(rows, project, first)
    assert (kept.state, kept.reason, kept.decided_by_name) == ("accepted", "eps is added by the caller", "bob")
    assert kept.until.occurrences == 5
    assert kept.until.date is not None
    assert kept.until.date.hour == 0
    follow(page.get_by_role("button", name="Undo"))
    shows(page.get_by_role("alert"), "2 findings are open again.")
    assert states(rows, project, first, second) + states(rows, other, third) == ["open"] * 3
    page.reload()
    expect(page.get_by_role("alert")).to_have_count(0)


@BOTH
def test_a_finding_is_called_false_reopened_and_assigned(
    open_window: Any, server: RunningServer, team: Team, options: dict[str, Any]
) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    fingerprint = rows.finding(project)
    window = open_as(open_window, server, user=bob, **options)
    page = window.page
    window.open(f"/projects/{project}/findings?state=any")

    def press(button: str) -> str:
        page.locator("[data-row]").get_by_role("checkbox").check()
        follow(page.get_by_role("button", name=button, exact=True))
        return str(page.get_by_role("alert").locator("p").first.inner_text())

    page.get_by_label("Reason").fill("the norm is never zero here")
    assert press("False positive") == "1 finding is called a false positive."
    assert states(rows, project, fingerprint) == ["false_positive"]
    shows(page.locator("[data-row]"), "bob: the norm is never zero here")
    assert press("Reopen") == "1 finding is open again."
    assert press("Reopen") == "0 findings are open again; 1 finding stays as before."
    page.get_by_label("Assign to").select_option(label="Bob")
    assert press("Assign") == "1 finding is assigned."
    assert finding_of(rows, project, fingerprint).assignee_id == bob
    page.get_by_label("Assign to").select_option(label="nobody")
    assert press("Assign") == "1 finding is assigned."
    assert finding_of(rows, project, fingerprint).assignee_id is None
    follow(page.get_by_role("button", name="Accept", exact=True))
    shows(page.get_by_role("alert"), "Nothing is selected")


def test_the_keyboard_alone_decides(open_window: Any, server: RunningServer, team: Team) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    older, middle, newer = (rows.finding(project) for _ in range(3))
    window = open_as(open_window, server, user=bob)
    page = window.page
    window.open("/inbox")
    keys = page.keyboard
    keys.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    assert_well_made(page)
    keys.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()  # as long as it is open, keys are its own
    keys.press("j")
    expect(page.locator("a:focus")).to_have_attribute("href", re.compile(f"/{newer}$"))
    keys.press("x")
    keys.press("j")
    keys.press("x")
    expect(page.get_by_text("2 of 3 selected")).to_be_visible()
    keys.press("k")
    keys.press("x")
    expect(page.get_by_text("1 of 3 selected")).to_be_visible()
    keys.press("f")
    keys.type("just a guess")
    with page.expect_navigation():
        keys.press("Enter")
    page.get_by_text("1 finding is called a false positive.").wait_for()
    assert states(rows, project, older, middle, newer) == ["open", "false_positive", "open"]
    keys.press("/")
    keys.type("axjf?")
    expect(page.get_by_label("Text")).to_have_value("axjf?")
    keys.press("Escape")
    keys.press("j")
    keys.press("a")  # nothing is selected: it means the one that is looked at
    keys.type("as intended")
    with page.expect_navigation():
        keys.press("Enter")
    page.get_by_text("1 finding is accepted.").wait_for()
    assert states(rows, project, newer) == ["accepted"]


def test_all_of_a_page_are_selected_at_once(open_window: Any, server: RunningServer, team: Team) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    for _ in range(3):
        rows.finding(project)
    window = open_as(open_window, server, user=bob)
    page = window.page
    window.open("/inbox")
    page.get_by_label("all on this page").check()
    expect(page.get_by_text("3 of 3 selected")).to_be_visible()
    page.get_by_role("checkbox", name="Select GP101").first.uncheck()
    assert page.get_by_label("all on this page").evaluate("box => box.indeterminate")
    page.get_by_label("all on this page").check()
    page.get_by_label("Reason").fill("known")
    follow(page.get_by_role("button", name="Accept", exact=True))
    page.get_by_text("3 findings are accepted.").wait_for()
    expect(page.get_by_text("Nothing is left to decide about")).to_be_visible()
    assert_well_made(page)


def test_who_may_only_read_sees_no_way_to_decide_and_is_refused(
    open_window: Any, server: RunningServer, team: Team
) -> None:
    rows, project = team.rows, team.project
    fingerprint = rows.finding(project)
    eve = rows.user("eve", "viewer")
    window = open_as(open_window, server, user=eve)
    window.open("/inbox")
    expect(window.page.locator("[data-row]")).to_have_count(1)
    expect(window.page.get_by_role("checkbox")).to_have_count(0)
    expect(window.page.get_by_role("button", name="Accept")).to_have_count(0)
    viewer, stranger = signed_in(server, user=eve), signed_in(server, user=rows.user("max"))
    one = f"/projects/{project}/findings/{fingerprint}"
    ref = f"{project}:{fingerprint}"
    for path, fields in (("/findings/decide", {"finding": ref, "action": "accept", "reason": "x"}),
                         (f"{one}/decide", {"action": "accept", "reason": "x"}), (f"{one}/assign", {"assignee": eve}),
                         (f"{one}/comments", {"text": "x"})):  # fmt: skip
        assert sent(viewer, path, **fields).status_code == 403, path
        assert sent(stranger, path, **fields).status_code == 404, path
        assert viewer.post(path, data=fields).status_code == 403, path  # a form of no page of ours
    assert stranger.get(one).status_code == 404
    assert stranger.get(f"/projects/{project}/findings").status_code == 404
    theirs = stranger.get("/inbox")
    assert theirs.status_code == 200
    assert "data-row" not in theirs.text
    assert states(rows, project, fingerprint) == ["open"]


def test_a_form_over_several_projects_is_obeyed_whole_or_not_at_all(server: RunningServer, team: Team) -> None:
    rows, project = team.rows, team.project
    other = rows.project("audio")
    mine, theirs = rows.finding(project), rows.finding(other)
    session = signed_in(server, user=rows.user("tom", "triager", project=project))
    both = [f"{project}:{mine}", f"{other}:{theirs}"]
    assert sent(session, "/findings/decide", finding=both, action="accept", reason="x").status_code == 404
    assert states(rows, project, mine) == ["open"]


def test_single_findings_are_decided_assigned_and_commented_from_their_own_page(
    server: RunningServer, team: Team
) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    analysis = rows.analysis(project)
    fingerprint = rows.finding(project, last_analysis_id=analysis)
    session = signed_in(server, user=bob)
    one = f"/projects/{project}/findings/{fingerprint}"
    assert session.get(one).headers["location"] == f"/analyses/{analysis}/findings/{fingerprint}"
    answer = sent(session, f"{one}/decide", action="accept", reason="known", next=f"/analyses/{analysis}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/analyses/{analysis}")
    assert sent(session, f"{one}/assign", assignee=bob).status_code == 303
    assert (
        sent(session, f"{one}/comments", text="look at `eps`", next="//evil.example/").headers["location"] == "/inbox"
    )
    kept = finding_of(rows, project, fingerprint)
    assert (kept.state, kept.assignee_id) == ("accepted", bob)
    events = Inbox(rows.database).history(SYSTEM, project, fingerprint).items
    assert [event.kind for event in events] == ["commented", "assigned", "accepted"]
    assert sent(session, f"/projects/{project}/findings/{'0' * 40}/decide", action="reopen").status_code == 303
    assert session.get(f"/projects/{project}/findings/{'0' * 40}").status_code == 404
    unseen = rows.finding(project)
    assert session.get(f"/projects/{project}/findings/{unseen}").status_code == 404


def test_a_decision_that_can_not_be_is_told_on_the_page(open_window: Any, server: RunningServer, team: Team) -> None:
    rows, project, bob = team.rows, team.project, team.bob
    rows.finding(project)
    window = open_as(open_window, server, user=bob)
    page = window.page
    window.open("/inbox")
    page.get_by_role("checkbox", name="Select GP101").check()
    page.get_by_label("Reason").fill("x")
    page.get_by_text("Accept for a limited time").click()
    page.get_by_label("until torch is newer than").fill("not a version")
    follow(page.get_by_role("button", name="Accept", exact=True))
    shows(page.get_by_role("alert"), "is no version of torch")
    page.get_by_role("checkbox", name="Select GP101").check()
    page.get_by_label("Reason").fill("x")
    page.get_by_text("Accept for a limited time").click()
    page.get_by_label("until this day (UTC)").fill("2001-01-01")
    follow(page.get_by_role("button", name="Accept", exact=True))
    shows(page.get_by_role("alert"), "has passed")
    with refusal(window):
        assert window.open("/inbox?before=nothing").status == 422
        assert window.open("/inbox?state=nothing").status == 422
