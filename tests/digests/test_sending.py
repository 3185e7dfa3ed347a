"""Digests on their way to a real mail server: what is sent, what is tried again, what is not sent any more."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import SecretStr
from sqlalchemy import delete, select

from services.accounts.models import MembershipRow, ProjectMembershipRow, UserRow
from services.database.base import utc_now
from services.digests import sending
from services.digests.models import DigestMailRow
from services.digests.repository import take_mail
from services.digests.sending import WAITS
from services.jobs.model import CONTROL_QUEUE
from services.projects.models import ProjectRow
from services.retention.leftovers import LEFTOVERS, forget
from services.settings.mail import read_address
from tests.digests.conftest import Office
from tests.servers.mail import HOST, MailServer
from tests.team_rows import days_ago
from worker.runner import Runner


@pytest.fixture
def user(office: Office) -> str:
    """Somebody for whom a mail lies in the outbox."""
    made = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=days_ago(0.5))
    assert office.queue(made) == 1
    return made


def over_tls(office: Office, authority: Path | None, **changes: object) -> None:
    office.settings = office.settings.model_copy(
        update={"smtp_starttls": "always", "smtp_ca_file": authority, **changes}
    )


def reason(office: Office) -> str:
    return str(office.mail().reason)


def waits(office: Office) -> bool:
    """Whether the one mail is tried again, and not before its wait is over."""
    due = office.mail().due_at
    return due is not None and due > utc_now() and office.send() == 0


def test_a_mail_says_whose_it_is_and_how_to_end_it(office: Office, mail_server: MailServer, user: str) -> None:
    assert office.send() == 1
    (taken,) = mail_server.taken
    assert (taken.sender, taken.receivers) == ("gradproof@team.example", ("ada@team.example",))
    message = taken.message
    assert message["From"] == "Gradproof <gradproof@team.example>"
    assert message["To"] == "ada@team.example"
    assert message["Subject"] == "Gradproof, daily: vision"
    assert message["Message-ID"] == f"<digest.{office.mail().id}@team.example>"
    assert message["List-Unsubscribe"] == "<https://gradproof.example/me#digest>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Date"].datetime == office.mail().created_at.replace(microsecond=0)
    assert message.get_content_type() == "text/plain"
    assert message.get_content_charset() == "utf-8"
    assert taken.raw.isascii()
    assert "1 new finding on the main line" in taken.text
    assert taken.text.rstrip().endswith("Another rhythm, or none: https://gradproof.example/me#digest")
    row = office.mail()
    assert (row.due_at, row.reason, row.attempts, row.status) == (None, None, 1, 250)
    assert row.delivered_at is not None
    assert office.send() == 0


@pytest.mark.parametrize("at", ["RCPT", "MAIL", "END", "DATA"])
def test_what_is_refused_for_now_is_tried_again_as_the_same_mail(
    office: Office, mail_server: MailServer, user: str, at: str
) -> None:
    mail_server.manners.answers[at] = "451 greylisted, come back"
    assert office.send() == 1
    assert reason(office) == "answered 451 greylisted, come back"
    assert waits(office)
    mail_server.manners.answers.clear()
    office.make_due()
    assert office.send() == 1
    row = office.mail()
    assert (row.attempts, row.reason, row.due_at) == (2, None, None)
    assert [taken.message["Message-ID"] for taken in mail_server.taken] == [f"<digest.{row.id}@team.example>"]


@pytest.mark.parametrize("at", ["RCPT", "MAIL", "END"])
def test_what_is_refused_for_good_is_over(office: Office, mail_server: MailServer, user: str, at: str) -> None:
    mail_server.manners.answers[at] = "550 5.1.1 nobody\u202e of that name"
    assert office.send() == 1
    row = office.mail()
    assert (row.due_at, row.status, row.delivered_at) == (None, 550, None)
    assert row.reason == "answered 550 5.1.1 nobody[U+202E] of that name"
    office.make_due()
    assert office.send() == 0


@pytest.mark.parametrize("at", ["EHLO", "MAIL", "RCPT", "DATA", "END"])
def test_a_connection_that_breaks_costs_a_wait(office: Office, mail_server: MailServer, user: str, at: str) -> None:
    mail_server.manners.hangs_up = at
    assert office.send() == 1
    assert mail_server.taken == []
    assert "SMTPServerDisconnected" in reason(office)
    assert waits(office)
    mail_server.manners.hangs_up = ""
    office.make_due()
    assert office.send() == 1
    assert len(mail_server.taken) == 1


def test_what_comes_after_it_was_taken_is_no_failure(office: Office, mail_server: MailServer, user: str) -> None:
    mail_server.manners.hangs_up = "QUIT"
    assert office.send() == 1
    assert office.mail().delivered_at is not None


def test_a_server_that_is_away_is_given_up_in_the_end(office: Office, mail_server: MailServer, user: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        office.settings = office.settings.model_copy(update={"smtp_url": f"smtp://127.0.0.1:{closed.getsockname()[1]}"})
        for number, wait in enumerate(WAITS, 1):
            before = utc_now()
            assert office.send() == 1
            row = office.mail()
            assert row.attempts == number
            assert row.due_at is not None
            assert before + wait <= row.due_at <= utc_now() + wait
            office.make_due()
        assert office.send() == 1
    assert office.mail().due_at is None
    assert reason(office).startswith(f"given up after {len(WAITS) + 1} attempts: ConnectionRefusedError")


def test_a_server_that_dawdles_is_cut_off(office: Office, mail_server: MailServer, user: str) -> None:
    mail_server.manners.dawdles = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_DEADLINE_S", 0.3)
        assert office.send() == 1
    assert waits(office)
    assert mail_server.taken == []


# ------------------------------------------------------------------------------------------------------ encryption


def test_over_starttls_with_a_password(office: Office, mail_server: MailServer, user: str) -> None:
    over_tls(office, mail_server.authority, smtp_user="gradproof", smtp_password=SecretStr("s3cret"))
    assert office.send() == 1
    (taken,) = mail_server.taken
    assert taken.over_tls
    assert taken.login == ("gradproof", "s3cret")
    assert mail_server.commands[:4] == ["EHLO", "STARTTLS", "EHLO", "AUTH"]


def test_a_server_without_starttls_is_told_nothing(office: Office, mail_server: MailServer, user: str) -> None:
    over_tls(office, mail_server.authority, smtp_user="gradproof", smtp_password=SecretStr("s3cret"))
    mail_server.manners.starttls = False
    assert office.send() == 1
    assert "STARTTLS" in reason(office)
    assert set(mail_server.commands) == {"EHLO"}
    assert waits(office)


def test_a_certificate_of_somebody_else_is_told_nothing(
    office: Office, mail_server: MailServer, user: str, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    for authority in (stranger, None):
        over_tls(office, authority, smtp_user="gradproof", smtp_password=SecretStr("s3cret"))
        assert office.send() == 1
        assert "certificate verify failed" in reason(office)
        assert set(mail_server.commands) == {"EHLO", "STARTTLS"}
        assert waits(office)
        office.make_due()


def _to_loopback(connect: Any, asked: list[str], address: tuple[str, int], *rest: Any, **named: Any) -> Any:
    asked.append(address[0])
    return connect(("127.0.0.1", address[1]), *rest, **named)


def test_only_this_very_machine_is_spoken_to_in_clear_unless_the_operator_says_so(
    office: Office, mail_server: MailServer, user: str
) -> None:
    office.settings = office.settings.model_copy(
        update={"smtp_url": mail_server.url(HOST), "smtp_ca_file": mail_server.authority}
    )
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", partial(_to_loopback, socket.create_connection, asked))
        mail_server.manners.starttls = False
        assert office.send() == 1
        assert "STARTTLS" in reason(office)
        mail_server.manners.starttls = True
        office.make_due()
        assert office.send() == 1
        assert [taken.over_tls for taken in mail_server.taken] == [True]
        with office.database.unit_of_work() as uow:
            uow.session.get_one(DigestMailRow, office.mail().id).due_at = days_ago(1)
        office.settings = office.settings.model_copy(update={"smtp_starttls": "never"})
        assert office.send() == 1
        assert [taken.over_tls for taken in mail_server.taken] == [True, False]
    assert set(asked) == {HOST}


def test_over_tls_from_the_first_byte(office: Office, user: str, tmp_path: Path) -> None:
    server = MailServer(tmp_path, tls=True)
    try:
        office.settings = office.settings.model_copy(
            update={"smtp_url": server.url(), "smtp_ca_file": server.authority}
        )
        assert office.send() == 1
        assert [taken.over_tls for taken in server.taken] == [True]
    finally:
        server.close()


def test_a_password_that_is_refused_is_the_operator_s_affair(
    office: Office, mail_server: MailServer, user: str
) -> None:
    over_tls(office, mail_server.authority, smtp_user="gradproof", smtp_password=SecretStr("s3cret"))
    mail_server.manners.answers["AUTH"] = "535 wrong"
    assert office.send() == 1
    assert "535" in reason(office)
    assert "s3cret" not in reason(office)
    assert waits(office)


# ------------------------------------------------------------------------------------------------------ whom it is for


def test_who_was_disabled_meanwhile_gets_nothing(office: Office, mail_server: MailServer, user: str) -> None:
    with office.database.unit_of_work() as uow:
        uow.session.get_one(UserRow, user).disabled_at = utc_now()
    assert office.send() == 1
    assert mail_server.commands == []
    assert (office.mail().due_at, reason(office)) == (None, "its receiver is disabled or has no address any more")


def test_who_wants_none_any_more_gets_none(office: Office, mail_server: MailServer, user: str) -> None:
    office.choose(user, None)
    assert office.send() == 1
    assert mail_server.commands == []
    assert reason(office) == "its receiver wants no digest any more"


def test_what_may_not_be_read_any_more_is_left_out(office: Office, mail_server: MailServer) -> None:
    user = office.member("ada")
    projects = [office.rows.project(name) for name in ("audio", "vision")]
    for project in projects:
        office.rows.finding(project, main_since=days_ago(0.5))
    assert office.queue(user) == 1
    with office.database.unit_of_work() as uow:
        uow.session.execute(delete(MembershipRow))
        uow.session.add(ProjectMembershipRow(project_id=projects[1], user_id=user, role="viewer"))
    assert office.send() == 1
    (taken,) = mail_server.taken
    assert taken.message["Subject"] == "Gradproof, daily: vision"
    assert "audio" not in taken.text


def test_who_has_lost_all_access_gets_nothing(office: Office, mail_server: MailServer, user: str) -> None:
    with office.database.unit_of_work() as uow:
        uow.session.execute(delete(MembershipRow))
    assert office.send() == 1
    assert mail_server.commands == []
    assert reason(office) == "its receiver may not read any of its projects any more"


@pytest.mark.parametrize(
    "address",
    [
        "ada@team.example\r\nBcc: eve@else.example",
        "ada@team.example\nX: y",
        "ada",
        "a,b@team.example",
        "<a@b>",
        "a b@c",
    ],
)
def test_an_address_can_not_write_into_the_head(
    office: Office, mail_server: MailServer, user: str, address: str
) -> None:
    with office.database.unit_of_work() as uow:
        uow.session.get_one(UserRow, user).email = address
    assert office.send() == 1
    assert mail_server.commands == []
    assert reason(office).startswith("the address of its receiver is no mail address")
    assert office.mail().due_at is None
    with pytest.raises(ValueError, match="no mail address"):
        read_address(address)


def test_a_name_can_not_write_into_the_head(office: Office, mail_server: MailServer) -> None:
    user = office.member("ada")
    project = office.rows.project("vision")
    with office.database.unit_of_work() as uow:
        uow.session.get_one(ProjectRow, project).name = (
            "v\r\nBcc: eve@else.example\r\n\r\nhello\u202e=?utf-8?q?x?= é" * 9
        )
    office.rows.finding(project, main_since=days_ago(0.5))
    assert office.queue(user) == 1
    assert office.send() == 1
    (taken,) = mail_server.taken
    assert taken.receivers == ("ada@team.example",)
    assert taken.message["Bcc"] is None
    assert sorted(taken.message.keys()) == sorted(
        ["From", "To", "Subject", "Date", "Message-ID", "List-Unsubscribe", "Auto-Submitted", "MIME-Version",
         "Content-Type", "Content-Transfer-Encoding"]
    )  # fmt: skip
    assert str(taken.message["Subject"]).startswith("Gradproof, daily: v Bcc: eve@else.example hello[U+202E]")
    assert max(len(line) for line in taken.raw.split(b"\r\n")) <= 200


# ------------------------------------------------------------------------------------------------------ processes


def test_two_that_send_at_once_send_one(office: Office, mail_server: MailServer) -> None:
    office.rows.finding(office.rows.project("vision"), main_since=days_ago(0.5))
    for name in ("ada", "bob", "eve"):
        assert office.queue(office.member(name)) == 1
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: office.send(), range(4)))
    assert sum(sent) == 3
    assert sorted(taken.receivers[0][:3] for taken in mail_server.taken) == ["ada", "bob", "eve"]


def test_what_somebody_else_has_taken_is_left_to_them(office: Office, user: str) -> None:
    seen = office.mail()
    with office.database.unit_of_work() as uow:
        assert take_mail(uow.session, seen, utc_now() + timedelta(minutes=1))
    with office.database.unit_of_work() as uow:
        assert not take_mail(uow.session, seen, utc_now() + timedelta(minutes=1))
    assert office.mail().attempts == 1


def test_a_process_that_dies_after_sending_repeats_the_very_mail(
    office: Office, mail_server: MailServer, user: str
) -> None:
    def die(*args: object) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_note", die)
        with pytest.raises(RuntimeError, match="killed"):
            office.send()
    # Its lease keeps others from it for a while.
    assert waits(office)
    due = office.mail().due_at
    assert due is not None
    assert due - utc_now() > timedelta(minutes=5)
    office.make_due()
    assert office.send() == 1
    first, second = mail_server.taken
    assert first.raw == second.raw
    assert office.mail().delivered_at is not None


def test_a_control_worker_does_it_where_mail_is_sent(office: Office, mail_server: MailServer, user: str) -> None:
    def names(runner: Runner) -> set[str]:
        return {thread.name for thread in runner._threads}

    silent = Runner(office.settings.model_copy(update={"smtp_url": ""}), office.database, [CONTROL_QUEUE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.mailing._EVERY_S", 0.01)
        speaking = Runner(office.settings, office.database, [CONTROL_QUEUE])
        for runner in (silent, speaking):
            runner.start()
        assert mail_server.heard.wait(30)
        assert len(names(speaking) - names(silent)) == 1
        for runner in (silent, speaking):
            runner.stop()
            runner.join()
    assert len(mail_server.taken) == 1


def test_mails_that_are_over_are_dropped_after_a_month(office: Office, user: str) -> None:
    (kind,) = (leftover for leftover in LEFTOVERS if leftover.name == "mails of digests")
    with office.database.unit_of_work() as uow:
        for age, due in ((29, None), (31, None), (31, utc_now())):
            content = {"period": "daily"}
            uow.session.add(DigestMailRow(user_id=user, content=content, created_at=days_ago(age), due_at=due))
    with office.database.unit_of_work() as uow:
        assert forget(uow.session, kind, limit=10) == 1
    with office.database.reading() as session:
        assert len(session.scalars(select(DigestMailRow)).all()) == 3
