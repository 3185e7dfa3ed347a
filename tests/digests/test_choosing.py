"""Who gets a digest: who asked for one, has an address, and is somewhere that mail is sent from."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from services.accounts.access import SYSTEM
from services.accounts.errors import PermissionDeniedError
from services.accounts.models import AuditEventRow
from services.digests.errors import NoMailError, UnknownPeriodError
from services.digests.model import next_due
from tests.digests.conftest import Office
from tests.team_rows import days_ago


def changes(office: Office) -> list[tuple[object, object]]:
    with office.database.reading() as session:
        events = session.scalars(
            select(AuditEventRow).where(AuditEventRow.action == "user.digest").order_by(AuditEventRow.id)
        )
        return [(event.details["from"], event.details["to"]) for event in events]


def test_nobody_has_one_who_did_not_ask(office: Office) -> None:
    ada = office.rows.subject(office.member("ada", period=None))
    choice = office.digests.choice(ada)
    assert (choice.period, choice.next_at) == (None, None)
    assert (choice.address, choice.mail_is_sent) == ("ada@team.example", True)
    assert office.digests.queue_due() == 0


def test_a_choice_is_kept_changed_and_taken_back(office: Office) -> None:
    user = office.member("ada", period=None)
    ada = office.rows.subject(user)
    assert office.digests.choose(ada, "daily").period == "daily"
    row = office.row(user)
    assert row.due_at - row.told_until == timedelta(days=1)
    assert office.digests.choose(ada, "daily").next_at == row.due_at
    # Another rhythm tells of what the first one has not told of.
    assert office.digests.choose(ada, "weekly").next_at == row.told_until + timedelta(days=7)
    assert office.digests.choose(ada, None).period is None
    assert office.digests.choose(ada, None).period is None
    assert changes(office) == [("none", "daily"), ("daily", "weekly"), ("weekly", "none")]


def test_what_can_not_be_chosen_is_refused(office: Office) -> None:
    ada = office.rows.subject(office.member("ada", period=None))
    bob = office.rows.subject(office.rows.user("bob", "viewer"))
    with pytest.raises(UnknownPeriodError, match="daily or weekly, not 'hourly'"):
        office.digests.choose(ada, "hourly")
    with pytest.raises(NoMailError, match="no e-mail address"):
        office.digests.choose(bob, "daily")
    for nobody in (SYSTEM, replace(ada, kind="token")):
        with pytest.raises(PermissionDeniedError):
            office.digests.choose(nobody, "daily")
        with pytest.raises(PermissionDeniedError):
            office.digests.choice(nobody)
    office.settings = office.settings.model_copy(update={"smtp_url": ""})
    with pytest.raises(NoMailError, match="sends no mail"):
        office.digests.choose(ada, "daily")
    assert changes(office) == []


def test_one_that_no_mail_can_bring_any_more_can_be_ended(office: Office) -> None:
    ada = office.rows.subject(office.member("ada"))
    office.settings = office.settings.model_copy(update={"smtp_url": ""})
    choice = office.digests.choice(ada)
    assert (choice.period, choice.mail_is_sent) == ("daily", False)
    assert office.digests.choose(ada, None).period is None


def test_the_hour_of_the_day_stays_whatever_was_missed() -> None:
    due = days_ago(10)
    for late, expected in ((timedelta(0), 1), (timedelta(hours=23), 1), (timedelta(days=3, hours=1), 4)):
        assert next_due(due, "daily", due + late) == due + timedelta(days=expected)
    assert next_due(due, "weekly", due + timedelta(days=3)) == due + timedelta(days=7)
