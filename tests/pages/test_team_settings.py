"""The settings pages in a browser: each form sent and its effect seen, with scripts and without, and who may not."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from analyzer.registry import all_rules
from services.accounts.access import SYSTEM
from services.database import Database
from services.projects.models import HookDeliveryRow, HookRow, ProjectRow
from services.projects.service import ProjectService
from services.projects.settings import BotSettings, GateSettings, ProjectSettings
from services.settings import Settings
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

HOSTILE = "\u202e<script>alert(1)</script>"
BOTH = pytest.mark.parametrize("options", [{}, NO_SCRIPT], ids=["script", "no script"])


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


@pytest.fixture
def project(rows: Rows) -> str:
    return rows.project("vision", repository_url="https://github.com/example/vision", default_branch="main")


def settings_of(rows: Rows, settings: Settings, project: str) -> ProjectSettings:
    return ProjectService(rows.database, settings).get(SYSTEM, project).settings


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_every_settings_page_is_well_made(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    ada = rows.user("ada", "admin", is_operator=True)
    rows.user("eve", "viewer", project=project, display_name=HOSTILE)
    hook = rows.add(HookRow(project_id=project, url="https://example.com/a", events=["analysis.finished"]))
    rows.add(HookDeliveryRow(hook_id=hook, event="analysis.finished", status=503, reason=HOSTILE, attempts=8))
    rows.finding(project)
    rows.finding(project, rule="GP999", name=HOSTILE)
    with rows.database.unit_of_work() as uow:
        uow.session.get_one(ProjectRow, project).settings = {"known_rules": ["GP101"], "modes": {"GP2": "monitor"}}
    window = open_as(open_window, server, user=ada, **options)
    base = f"/projects/{project}"
    paths = [
        f"{base}/settings{part}"
        for part in ("", "/gate", "/triage", "/bot", "/members", "/tokens", "/hooks", f"/hooks/{hook}")
    ]
    for path in [*paths, f"{base}/rules", f"{base}/audit", "/me", "/organisations", "/organisations/default",
                 "/organisations/default/audit", "/installation"]:  # fmt: skip
        assert window.open(path).status == 200, path
        assert_well_made(window.page)
        assert "<script>alert" not in window.page.content(), path


@BOTH
def test_general_settings_are_changed_and_the_project_archived_and_restored(
    open_window: Any, server: RunningServer, project: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/projects/{project}/settings")
    page.get_by_label("Name").fill("sight")
    page.get_by_label("Repository").fill("https://github.com/example/sight")
    follow(page.get_by_role("button", name="Save"))
    reads(page.get_by_role("alert"), "Saved.")
    expect(page.get_by_label("Name")).to_have_value("sight")
    page.get_by_label("Repository").fill("http://127.0.0.1/")
    with refusal(window):
        follow(page.get_by_role("button", name="Save"))
        assert page.get_by_role("alert").inner_text()
    page.get_by_text("Archive the project").click()
    follow(page.get_by_role("button", name="Archive sight"))
    expect(page.get_by_text("sight is archived.")).to_be_visible()
    window.open(f"/projects/{project}/settings")
    follow(page.get_by_role("button", name="Take it into use again"))
    expect(page.get_by_text("sight is in use again.")).to_be_visible()


@BOTH
def test_new_findings_are_given_to_code_owners(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/projects/{project}/settings/triage")
    expect(page.get_by_label("New findings are given to")).to_have_value("nobody")
    page.get_by_label("New findings are given to").select_option("owner")
    follow(page.get_by_role("button", name="Save"))
    shows(page.get_by_role("alert"), "Saved")
    expect(page.get_by_label("New findings are given to")).to_have_value("owner")
    assert settings_of(rows, server.settings, project) == ProjectSettings(assign="owner")


@BOTH
def test_gate_and_bot_are_set(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/projects/{project}/settings/gate")
    page.get_by_label("No new warning").select_option("no")
    follow(page.get_by_role("button", name="Save the gate"))
    expect(page.get_by_label("No new warning")).to_have_value("no")
    follow(page.get_by_role("link", name="Bot", exact=True))
    page.get_by_label("A gate that fails makes the check fail").check()
    page.get_by_label("Comment on added lines").uncheck()
    page.get_by_label("Comments at lines, at most").fill("7")
    follow(page.get_by_role("button", name="Save"))
    shows(page.get_by_role("alert"), "Saved")
    assert settings_of(rows, server.settings, project) == ProjectSettings(
        gate=GateSettings(no_new_warning=False), bot=BotSettings(blocks=True, inline=False, inline_most=7)
    )
    page.get_by_label("Comments at lines, at most").fill("31")
    with refusal(window):
        follow(page.get_by_role("button", name="Save"))
        shows(page.get_by_role("alert"), "inline_most")


@BOTH
def test_rules_show_their_precision_get_modes_and_are_adopted(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    for state, verdict in (("open", "confirmed"), ("fixed", "static_only"), ("false_positive", "static_only"),
                           ("accepted", "not_exercised")):  # fmt: skip
        rows.finding(project, state=state, verdict=verdict)
    with rows.database.unit_of_work() as uow:
        uow.session.get_one(ProjectRow, project).settings = {"known_rules": ["GP101"]}
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/projects/{project}/rules")
    line = page.get_by_role("row", name="GP101")
    assert [cell.inner_text() for cell in line.get_by_role("cell").all()][:7] == ["4", "1", "1", "1", "1", "1", "75 %"]
    line.get_by_label("Mode of GP101").select_option("comment")
    follow(page.get_by_role("button", name="Save the modes"))
    expect(page.get_by_label("Mode of GP101")).to_have_value("comment")
    shows(page.locator("main"), "are only monitored")
    follow(page.get_by_role("button", name="Adopt them"))
    shows(page.get_by_role("alert"), "Adopted")
    kept = settings_of(rows, server.settings, project)
    assert kept.modes == {"GP101": "comment"}
    assert kept.known_rules is not None
    assert set(kept.known_rules) == {rule.id for rule in all_rules()}


@BOTH
def test_members_come_change_and_go(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    rows.user("bob")
    window = open_as(open_window, server, user=rows.user("ada", "admin"), **options)
    page = window.page
    for path in (f"/projects/{project}/settings/members", "/organisations/default"):
        window.open(path)
        page.get_by_label("Name").fill("nobody")
        with refusal(window):
            follow(page.get_by_role("button", name="Add"))
            shows(page.get_by_role("alert"), "nobody")
        page.get_by_label("Name").fill("bob")
        page.get_by_label("Role", exact=True).select_option("triager")
        follow(page.get_by_role("button", name="Add"))
        line = page.get_by_role("row", name="Bob")
        reads(line.get_by_role("cell").first, "triager")
        line.get_by_label("Role of bob").select_option("maintainer")
        follow(line.get_by_role("button", name="Change"))
        reads(page.get_by_role("alert"), "bob is maintainer now.")
        follow(page.get_by_role("row", name="Bob").get_by_role("button", name="Remove"))
        expect(page.get_by_role("row", name="Bob")).to_have_count(0)


@BOTH
def test_tokens_are_shown_once_and_revoked(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, user=rows.user("ada", "admin"), **options)
    page = window.page
    for path in (f"/projects/{project}/settings/tokens", "/me"):
        window.open(path)
        form = page.locator("form", has=page.get_by_role("button", name="Make it"))
        form.get_by_label("Name").fill("pipeline")
        follow(form.get_by_role("button", name="Make it"))
        text = page.get_by_label("new token", exact=True).locator("code").inner_text()
        subject = open_tokens(server, text)
        assert subject is not None
        assert subject.project_id == (project if "projects" in path else None)
        window.open(path)
        assert text not in page.content()
        follow(page.get_by_role("button", name="Revoke pipeline"))
        reads(page.get_by_role("alert"), "pipeline is revoked.")
        assert open_tokens(server, text) is None


def open_tokens(server: RunningServer, text: str) -> Any:
    """Whom a token lets in."""
    from services.accounts import TokenService  # noqa: PLC0415 - of this one question

    database = Database.open(server.settings, lambda _queue: None)
    try:
        return TokenService(database, server.settings).authenticate(text)
    finally:
        database.close()


@BOTH
def test_hooks_are_added_looked_at_sent_again_and_removed(
    open_window: Any, server: RunningServer, rows: Rows, project: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/projects/{project}/settings/hooks")
    page.get_by_label("Address").fill("https://127.0.0.1/hook")
    with refusal(window):
        follow(page.get_by_role("button", name="Add"))
        assert page.get_by_role("alert").inner_text()
    page.get_by_label("Address").fill("https://example.com/hook")
    follow(page.get_by_role("button", name="Add"))
    hook = page.url.rpartition("/")[2]
    page.get_by_text("The secret", exact=True).click()
    expect(page.get_by_text("whsec_")).to_be_visible()
    rows.add(HookDeliveryRow(hook_id=hook, event="analysis.finished", status=503, reason="503", attempts=8))
    page.reload()
    expect(page.get_by_text("given up")).to_be_visible()
    follow(page.get_by_role("button", name="Send again"))
    expect(page.get_by_text("waits")).to_be_visible()
    follow(page.get_by_role("button", name="Switch it off"))
    page.get_by_role("button", name="Switch it on").wait_for()
    page.get_by_text("Remove the hook").click()
    follow(page.get_by_role("button", name="Remove it"))
    expect(page.get_by_text("No hook yet")).to_be_visible()


@BOTH
def test_one_changes_name_and_password_and_ends_sessions(
    open_window: Any, server: RunningServer, rows: Rows, options: dict[str, Any]
) -> None:
    admin = signed_in(server)
    made = sent(admin, "/installation/users", name="ada", password="quite a long word 7", operator="true")
    assert made.status_code == 303, made.text
    window = open_window(signed_in=False, **options)
    page = window.page
    window.open("/sign-in?next=/me")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("quite a long word 7")
    follow(page.get_by_role("button", name="Sign in"))
    page.wait_for_url("**/me")
    page.get_by_label("Display name").fill("Ada L.")
    follow(page.get_by_role("button", name="Save"))
    expect(page.get_by_label("Display name")).to_have_value("Ada L.")
    page.get_by_label("Present password").fill("wrong")
    page.get_by_label("New password").fill("another long word 8")
    with refusal(window):
        follow(page.get_by_role("button", name="Change it"))
        shows(page.get_by_role("alert"), "wrong")
    page.get_by_label("Present password").fill("quite a long word 7")
    page.get_by_label("New password").fill("another long word 8")
    follow(page.get_by_role("button", name="Change it"))
    shows(page.get_by_role("alert"), "The password is changed")
    expect(page.get_by_text("this one")).to_be_visible()
    follow(page.get_by_role("button", name="Sign out everywhere"))
    page.wait_for_url("**/sign-in")


def test_whoever_holds_the_first_token_makes_more_of_the_installation(server: RunningServer) -> None:
    """At first there is nobody else: the link of `gradproof serve` signs in with that token."""
    first = signed_in(server)
    page = sent(first, "/me/tokens", name="laptop", scope="submit", days="30").text
    text = page.partition('aria-label="new token"')[2].partition("<code>")[2].partition("</code>")[0]
    subject = open_tokens(server, text)
    assert subject is not None
    assert subject.everywhere
    assert "laptop" in first.get("/me").text
    reader = signed_in(server, scope="read")
    assert "Make a token" not in reader.get("/me").text
    assert sent(reader, "/me/tokens", name="more", scope="admin").status_code == 403


def test_an_operator_makes_and_disables_users(server: RunningServer, rows: Rows) -> None:
    operator = signed_in(server)
    assert sent(operator, "/installation/users", name="Not good!").status_code == 422
    assert sent(operator, "/installation/users", name="bob", display_name="Bob").status_code == 303
    assert "Bob" in operator.get("/installation").text
    assert sent(operator, "/installation/users/bob/disable").status_code == 303
    assert "disabled" in operator.get("/installation").text
    assert sent(operator, "/installation/users/bob/enable").status_code == 303
    assert "disabled" not in operator.get("/installation").text
    assert sent(operator, "/installation/users/bob/promote").status_code == 303
    page = operator.get("/installation").text
    assert "Operator no more" in page
    # A browser mends what is opened in one cell and closed in another, so that no look at the page tells.
    assert {cell.count("<div") - cell.count("</div") for cell in re.findall(r"<td>.*?</td>", page, re.DOTALL)} == {0}
    assert sent(operator, "/installation/users/bob/demote").status_code == 409
    rows.user("ann", is_operator=True)
    assert sent(operator, "/installation/users/bob/demote").status_code == 303
    assert sent(operator, "/installation/users/bob/crown").status_code == 422
    assert sent(operator, "/organisations", slug="acme", name="Acme").headers["location"] == "/organisations/acme"
    member = signed_in(server, user=rows.user("eve", "admin"))
    for path in ("/installation/users", "/installation/users/bob/promote", "/organisations"):
        assert sent(member, path, name="x", slug="x").status_code == 403, path
    assert member.get("/installation").status_code == 403


def test_who_may_not_configure_is_refused_and_sees_no_way_there(
    server: RunningServer, rows: Rows, project: str
) -> None:
    viewer = signed_in(server, user=rows.user("eve", "viewer"))
    stranger = signed_in(server, user=rows.user("max"))
    pages = ["settings", "settings/gate", "settings/triage", "settings/bot", "settings/members", "settings/tokens",
             "settings/hooks", "audit", "audit.csv"]  # fmt: skip
    forms = ["settings", "settings/archive", "settings/restore", "settings/gate", "settings/bot", "settings/members",
             "settings/tokens", f"settings/tokens/{'0' * 27}/revoke", "settings/hooks",
             f"settings/hooks/{'0' * 27}/remove", f"settings/hooks/{'0' * 27}/deliveries/{'0' * 27}/repeat",
             "rules", "rules/adopt"]  # fmt: skip
    assert f"/projects/{project}/settings" not in viewer.get(f"/projects/{project}").text
    assert "Save the modes" not in viewer.get(f"/projects/{project}/rules").text
    for name in pages:
        assert viewer.get(f"/projects/{project}/{name}").status_code == 403, name
        assert stranger.get(f"/projects/{project}/{name}").status_code == 404, name
    for name in forms:
        assert sent(viewer, f"/projects/{project}/{name}", name="x").status_code == 403, name
        assert sent(stranger, f"/projects/{project}/{name}", name="x").status_code == 404, name
        assert viewer.post(f"/projects/{project}/{name}").status_code == 403, name  # a form of no page of ours
    assert stranger.get("/organisations/default").status_code == 404
    assert viewer.get("/organisations/default/audit").status_code == 403
    assert sent(viewer, "/organisations/default/members", user="max", role="admin").status_code == 403


def test_the_audit_log_is_filtered_paged_and_downloaded(server: RunningServer, rows: Rows, project: str) -> None:
    operator = signed_in(server)
    for number in range(60):
        assert (
            sent(operator, f"/projects/{project}/settings", name="vision", default_branch=f"b{number}").status_code
            == 303
        )
    rows.user("bob")
    assert sent(operator, f"/projects/{project}/settings/members", user="bob", role="viewer").status_code == 303
    page = operator.get(f"/projects/{project}/audit").text
    assert page.count("<code>project.change</code>") == 49
    assert "<code>member.add</code>" in page
    older = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert operator.get(older).text.count("<code>project.change</code>") == 11
    assert "member.add" not in operator.get(f"/projects/{project}/audit?action=project").text
    file = operator.get(f"/projects/{project}/audit.csv?action=project")
    assert file.headers["content-disposition"].startswith("attachment")
    assert len(list(csv.reader(io.StringIO(file.text)))) == 61
    assert operator.get("/organisations/default/audit?action=member").text.count("<code>member.add</code>") == 1
