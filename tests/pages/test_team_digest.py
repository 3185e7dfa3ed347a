"""The digest on one's own page: what can be chosen, and what is said where nothing can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from services.accounts.models import AuditEventRow
from services.database import Database
from services.database.base import utc_now
from services.digests.models import DigestRow
from services.settings import Settings
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, open_as, shows
from tests.serving import RunningServer
from tests.team_rows import Rows

MAIL = {"smtp_url": "smtp://127.0.0.1:25", "mail_from": "gradproof@team.example"}


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


@pytest.fixture
def server(embedded_settings: Settings) -> Iterator[RunningServer]:
    with RunningServer(embedded_settings.model_copy(update=MAIL)) as running:
        yield running


@pytest.mark.parametrize("options", [*LOOKS.values(), NO_SCRIPT], ids=[*LOOKS, "no script"])
def test_one_chooses_how_often(open_window: Any, server: RunningServer, rows: Rows, options: dict[str, Any]) -> None:
    ada = rows.user("ada", "viewer", email="ada@team.example")
    window = open_as(open_window, server, user=ada, **options)
    page = window.page
    # Where the link in a mail leads.
    window.open("/me#digest")
    part = page.get_by_role("region", name="Digest by mail")
    expect(part.get_by_label("How often")).to_have_value("")
    shows(part, "To ada@team.example.")
    for value, said in (("weekly", "a weekly digest"), ("daily", "a daily digest"), ("", "No digest")):
        part.get_by_label("How often").select_option(value)
        follow(part.get_by_role("button", name="Save"))
        shows(page.get_by_role("alert"), said)
        expect(part.get_by_label("How often")).to_have_value(value)
        assert ("The next one is due" in part.inner_text()) is bool(value)
        if options is not NO_SCRIPT:
            assert_well_made(page)
        with rows.database.reading() as session:
            row = session.get(DigestRow, ada)
            assert ("" if row is None else row.period) == value
    with rows.database.reading() as session:
        events = session.scalars(select(AuditEventRow).where(AuditEventRow.action == "user.digest")).all()
    assert [event.details["to"] for event in events] == ["weekly", "daily", "none"]


def test_without_an_address_it_says_so(open_window: Any, server: RunningServer, rows: Rows) -> None:
    window = open_as(open_window, server, user=rows.user("bob", "viewer"))
    window.open("/me")
    part = window.page.get_by_role("region", name="Digest by mail")
    shows(part, "no e-mail address")
    expect(part.get_by_label("How often")).to_have_count(0)
    assert_well_made(window.page)


def test_a_token_has_no_digest(open_window: Any, server: RunningServer) -> None:
    window = open_as(open_window, server)
    window.open("/me")
    expect(window.page.get_by_role("region", name="Digest by mail")).to_have_count(0)


class TestWithoutMail:
    """Where the operator has set no mail server."""

    @pytest.fixture
    def server(self, embedded_settings: Settings) -> Iterator[RunningServer]:
        with RunningServer(embedded_settings) as running:
            yield running

    def test_it_says_so_and_what_was_chosen_can_be_ended(
        self, open_window: Any, server: RunningServer, rows: Rows
    ) -> None:
        ada = rows.user("ada", "viewer", email="ada@team.example")
        window = open_as(open_window, server, user=ada)
        page = window.page
        window.open("/me")
        part = page.get_by_role("region", name="Digest by mail")
        shows(part, "This server sends no mail")
        expect(part.get_by_label("How often")).to_have_count(0)
        rows.add(DigestRow(user_id=ada, period="weekly", told_until=utc_now(), due_at=utc_now()))
        window.open("/me")
        expect(part.get_by_label("How often")).to_have_value("weekly")
        expect(part).not_to_contain_text("The next one is due", use_inner_text=True)
        part.get_by_label("How often").select_option("")
        follow(part.get_by_role("button", name="Save"))
        shows(page.get_by_role("alert"), "No digest")
        expect(part.get_by_label("How often")).to_have_count(0)
