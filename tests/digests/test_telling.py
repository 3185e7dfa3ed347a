"""What a digest tells: what happened in its period, where its receiver may read, and nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import delete, select, update

from services.accounts.models import ApiTokenRow, MembershipRow, UserRow
from services.analyses.reconciler import Reconciler
from services.database.base import utc_now
from services.digests import service
from services.digests.model import MOST_FINDINGS, MOST_PROJECTS, Digest, shares
from services.projects.models import ProjectRow
from services.triage.models import ProjectFindingRow
from tests.digests.conftest import Office
from tests.team_rows import days_ago

EARLIER = days_ago(0.5)
LONG_AGO = days_ago(30)


def finding_id(office: Office, fingerprint: str) -> str:
    with office.database.reading() as session:
        found = session.scalars(select(ProjectFindingRow.id).where(ProjectFindingRow.fingerprint == fingerprint))
        return str(found.one())


def test_nothing_is_written_before_it_is_due(office: Office) -> None:
    user = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    before = office.row(user)
    assert office.digests.queue_due() == 0
    assert office.mails() == []
    assert office.row(user).due_at == before.due_at


def test_where_nothing_happened_no_mail_is_written_and_the_period_moves_on(office: Office) -> None:
    user = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=LONG_AGO, assignee_id=user, assignee_name="ada")
    assert office.queue(user) == 0
    assert office.mails() == []
    row = office.row(user)
    assert utc_now() < row.due_at <= utc_now() + timedelta(days=1)
    assert utc_now() - row.told_until < timedelta(hours=1)


def test_all_that_happened_is_told(office: Office) -> None:
    user = office.member("ada")
    project = office.rows.project("vision")
    office.rows.finding(project, path="new.py", main_since=EARLIER)
    office.rows.finding(project, path="back.py", main_since=EARLIER, state="regressed")
    office.rows.finding(project, path="gone.py", state="fixed", on_main=False, fixed_at=EARLIER)
    given = office.rows.finding(project, path="given.py", main_since=LONG_AGO, assignee_id=user)
    office.rows.event(finding_id(office, given), "assigned", at=EARLIER)
    office.rows.finding(project, path="mine.py", main_since=LONG_AGO, assignee_id=user)
    accepted = {"state": "accepted", "main_since": LONG_AGO, "decided_by": user}
    office.rows.finding(project, path="ending.py", until_date=utc_now() + timedelta(hours=12), **accepted)
    over = finding_id(office, office.rows.finding(project, path="over.py", main_since=LONG_AGO))
    office.rows.event(over, "accepted", at=LONG_AGO, actor_kind="user", actor_id=user)
    office.rows.event(over, "expired", at=EARLIER)
    # What is none of it.
    office.rows.finding(project, path="old.py", main_since=LONG_AGO)
    office.rows.finding(project, path="proposed.py", on_main=False, first_seen_at=EARLIER)
    office.rows.finding(project, path="fixed-long-ago.py", state="fixed", on_main=False, fixed_at=LONG_AGO)
    office.rows.finding(project, path="later.py", until_date=utc_now() + timedelta(days=3), **accepted)
    office.rows.finding(project, path="of-others.py", until_date=utc_now() + timedelta(hours=12), state="accepted")
    of_others = finding_id(office, office.rows.finding(project, path="over-of-others.py", main_since=LONG_AGO))
    office.rows.event(of_others, "accepted", at=LONG_AGO, actor_kind="user", actor_id=user)
    office.rows.event(of_others, "accepted", at=LONG_AGO, actor_kind="user", actor_id="somebody")
    office.rows.event(of_others, "expired", at=EARLIER)

    assert office.queue(user) == 1
    text = office.told()
    for said, path in (
        ("1 acceptance of yours ends soon", "ending.py"),
        ("1 acceptance of yours has ended", "over.py"),
        ("1 finding is back after it was fixed", "back.py"),
        ("1 new finding on the main line", "new.py"),
        ("1 finding was given to you", "given.py"),
        ("1 finding is fixed", "gone.py"),
        ("2 open findings are yours", "mine.py"),
    ):
        assert said in text, said
        assert f" at {path}:" in text, path
        assert text.index(said) < text.index(f" at {path}:")
    for path in ("old.py", "proposed.py", "fixed-long-ago.py", "later.py", "of-others.py", "over-of-others.py"):
        assert path not in text, path
    assert f"https://gradproof.example/projects/{project}/findings/{given}" in text
    assert "error GP101 unprotected-division at new.py:" in text


def test_an_acceptance_by_a_token_is_its_user_s_and_one_of_a_finding_its_assignee_s(office: Office) -> None:
    user = office.member("ada")
    project = office.rows.project("vision")
    token = office.rows.add(ApiTokenRow(name="t", kind="api", digest="d", last_four="four", scopes=[], user_id=user))
    ours = finding_id(office, office.rows.finding(project, path="by-token.py", main_since=LONG_AGO))
    office.rows.event(ours, "accepted", at=LONG_AGO, actor_kind="token", actor_id=token)
    office.rows.event(ours, "expired", at=EARLIER)
    held = finding_id(office, office.rows.finding(project, path="held.py", main_since=LONG_AGO, assignee_id=user))
    office.rows.event(held, "accepted", at=LONG_AGO, actor_kind="user", actor_id="somebody")
    office.rows.event(held, "expired", at=EARLIER)
    assert office.queue(user) == 1
    assert "2 acceptances of yours have ended" in office.told()


def test_only_what_may_be_read_is_told(office: Office) -> None:
    user = office.member("ada")
    elsewhere = office.rows.organisation("acme")
    office.rows.finding(office.rows.project("acme/secret", organisation_id=elsewhere), main_since=EARLIER)
    office.rows.finding(office.rows.project("kept", archived_at=utc_now()), main_since=EARLIER)
    assert office.queue(user) == 0
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    assert office.queue(user) == 1
    assert "secret" not in office.told()
    assert Digest.model_validate(office.mail().content).further == 0


def test_an_operator_is_told_of_everything(office: Office) -> None:
    user = office.member("root", is_operator=True)
    elsewhere = office.rows.organisation("acme")
    office.rows.finding(office.rows.project("acme/secret", organisation_id=elsewhere), main_since=EARLIER)
    assert office.queue(user) == 1
    assert office.told().startswith("acme/secret\n")


@pytest.mark.parametrize("change", ["disabled", "no address", "no member"])
def test_who_is_not_let_in_gets_nothing(office: Office, change: str) -> None:
    user = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    with office.database.unit_of_work() as uow:
        row = uow.session.get_one(UserRow, user)
        if change == "disabled":
            row.disabled_at = utc_now()
        elif change == "no address":
            row.email = None
        else:
            uow.session.execute(delete(MembershipRow))
    assert office.queue(user) == 0
    assert office.mails() == []
    assert office.row(user).due_at > utc_now()


def test_much_is_counted_and_not_named(office: Office) -> None:
    user = office.member("ada")
    first = office.rows.project("a-first")
    for _ in range(30):
        office.rows.finding(first, main_since=EARLIER)
    for number in range(MOST_PROJECTS + 4):
        office.rows.finding(office.rows.project(f"p{number:02}"), main_since=EARLIER)
    assert office.queue(user) == 1
    digest = Digest.model_validate(office.mail().content)
    assert (len(digest.sections), digest.further) == (MOST_PROJECTS, 5)
    text = digest.sections[0].text
    assert "30 new findings on the main line" in text
    assert text.count("/findings/") == MOST_FINDINGS
    assert "and 20 more" in text


def test_each_kind_gets_its_share_of_the_names() -> None:
    assert shares((1, 0, 30, 2), 10) == (1, 0, 7, 2)
    assert shares((30, 30, 30), 10) == (4, 3, 3)
    assert shares((2, 1), 10) == (2, 1)
    assert shares((), 10) == ()


def test_what_happened_just_now_is_told_the_next_time_and_nothing_twice(office: Office) -> None:
    user = office.member("ada")
    project = office.rows.project("vision")
    fingerprint = office.rows.finding(project, main_since=utc_now())
    assert office.queue(user) == 0
    told_until = office.row(user).told_until
    with office.database.unit_of_work() as uow:
        came = told_until + timedelta(minutes=5)
        uow.session.execute(update(ProjectFindingRow).values(main_since=came))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_LAG", timedelta(0))
        office.pass_time(user, since=told_until)
        assert office.digests.queue_due() == 1
        assert fingerprint in office.told()
        office.pass_time(user, since=office.row(user).told_until)
        assert office.digests.queue_due() == 0


def test_a_process_that_dies_in_between_loses_nothing(office: Office) -> None:
    user = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    office.pass_time(user)
    before = office.row(user)

    def die(*args: object, **values: object) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "DigestMailRow", die)
        assert office.digests.queue_due() == 0
    assert (office.row(user).told_until, office.row(user).due_at) == (before.told_until, before.due_at)
    assert office.digests.queue_due() == 1
    assert office.digests.queue_due() == 0


def test_two_that_look_at_once_write_one(office: Office) -> None:
    for name in ("ada", "bob", "eve"):
        office.pass_time(office.member(name))
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    with ThreadPoolExecutor(4) as pool:
        queued = list(pool.map(lambda _: office.digests.queue_due(), range(4)))
    assert sum(queued) == len(office.mails()) == 3


def test_one_that_can_not_be_written_keeps_nobody_else_waiting(office: Office) -> None:
    users = [office.member(name) for name in ("ada", "bob")]
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    for user in users:
        office.pass_time(user)
    compose = service.section
    failures = iter([True])

    def fail_once(*args: object) -> object:
        if next(failures, False):
            raise RuntimeError("no words")
        return compose(*args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "section", fail_once)
        assert office.digests.queue_due() == 1
    assert office.digests.queue_due() == 1


def test_the_reconciler_does_it_where_mail_is_sent(office: Office) -> None:
    user = office.member("ada")
    office.rows.finding(office.rows.project("vision"), main_since=EARLIER)
    office.pass_time(user)
    silent = office.settings.model_copy(update={"smtp_url": ""})
    assert Reconciler(office.database, silent, "a").tick().digests == 0
    assert office.row(user).due_at < utc_now()
    assert Reconciler(office.database, office.settings, "a").tick().digests == 1


def test_names_are_bounded_and_show_what_they_hide(office: Office) -> None:
    user = office.member("ada")
    project = office.rows.project("vision")
    with office.database.unit_of_work() as uow:
        uow.session.get_one(ProjectRow, project).name = "vi\r\nBcc: eve@else.example\u202esion" + "x" * 500
    office.rows.finding(project, main_since=EARLIER, path="a\nb\x1b[31m.py" + "y" * 5_000, rule="GP\u200b1")
    assert office.queue(user) == 1
    text = office.told()
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "vi Bcc: eve@else.example[U+202E]sion" in text
    assert "GP[U+200B]1" in text
    assert "a b[U+001B][31m.py" in text
    assert max(len(line) for line in text.splitlines()) < 300
