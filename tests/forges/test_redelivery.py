"""Webhooks that were lost while we were away are asked for again: over real HTTP, by a fake GitHub's log of deliveries.

Time passes at the fake and for the turn of whoever looks; nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from services.forges.connections import Forges
from services.forges.github.models import HookDelivery
from services.forges.redelivery import EVERY, MOST_A_ROUND, Redelivery, Round, lost
from services.forges.redelivery_repository import TURN
from services.jobs.models import LeaseRow
from services.settings import Settings
from tests.forges.test_end_to_end import OPENED, opened, published
from tests.forges.workplace import Workplace
from tools.fake_forge.failures import Failure, secondary_limit, server_error

NOBODY = "http://127.0.0.1:9/webhooks/github"
ZEN = {"zen": "Half measures are as bad as nothing at all."}


@pytest.fixture
def workplace(embedded_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(embedded_settings, tmp_path) as opened:
        opened.forge.clock.freeze()
        yield opened
    assert opened.forge.violations == []


@contextmanager
def away(workplace: Workplace) -> Iterator[None]:
    """What GitHub sends meanwhile reaches nobody."""
    door, workplace.forge.webhook_url = workplace.forge.webhook_url, NOBODY
    yield
    workplace.forge.webhook_url = door


def pass_time(workplace: Workplace, time: timedelta = EVERY) -> None:
    """At the forge, and for the one whose turn it is."""
    workplace.forge.clock.advance(seconds=time.total_seconds())
    with workplace.database.unit_of_work() as uow:
        turn = uow.session.get(LeaseRow, TURN)
        if turn is not None:
            turn.until -= time + timedelta(seconds=1)


def hold_round(workplace: Workplace) -> Round:
    """A round of a process that was just started, and what it brings about."""
    with ExitStack() as stack:
        forges = Forges(workplace.settings, workplace.clock)
        stack.callback(forges.close)
        done = Redelivery(workplace.database, workplace.settings, forges, workplace.clock).round()
    workplace.settle()
    return done


def asked(workplace: Workplace, method: str = "POST") -> list[int | None]:
    """How requests of rounds were answered, in order: those for attempts, or with GET those for the log."""
    return [
        request.status
        for request in workplace.forge.requests
        if request.method == method and request.path.startswith("/app/hook/deliveries")
    ]


class TestAPullRequestThatWasOpenedWhileWeWereAway:
    @pytest.fixture
    def workplace(self, service_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
        with Workplace(service_settings, tmp_path) as opened:
            opened.forge.clock.freeze()
            yield opened
        assert opened.forge.violations == []

    def test_it_is_analysed_after_one_round_and_once(self, workplace: Workplace) -> None:
        forge = workplace.forge
        with away(workplace):
            pull = opened(workplace)
        workplace.work()
        sent = len(forge.deliveries)
        assert (workplace.deliveries(), workplace.analyses(), dict(forge.writes())) == ([], [], {})

        assert hold_round(workplace) == Round(held=True, asked=sent, missing=sent)
        workplace.work()
        assert dict(forge.writes()) == OPENED
        assert [row.purpose for row in workplace.analyses()] == ["base", "proposal"]
        assert workplace.row(pull).silence == {}

        tasks, deliveries = len(workplace.tasks()), len(forge.deliveries)
        for _ in range(3):
            pass_time(workplace)
            assert hold_round(workplace) == Round(held=True)
            workplace.work()
        assert (len(workplace.tasks()), len(forge.deliveries)) == (tasks, deliveries)
        assert dict(forge.writes()) == OPENED
        assert asked(workplace) == [202] * sent


def test_where_everything_arrived_only_the_log_is_read_and_the_second_time_for_nothing(workplace: Workplace) -> None:
    published(workplace)
    forges = Forges(workplace.settings, workplace.clock)
    ours = Redelivery(workplace.database, workplace.settings, forges, workplace.clock)
    assert ours.round() == Round(held=True)
    pass_time(workplace)
    assert ours.round() == Round(held=True)
    forges.close()
    assert asked(workplace) == []
    assert asked(workplace, "GET") == [200, 304]  # what is not modified doesn't count


def test_what_we_took_is_not_asked_for_even_where_github_never_heard_our_answer(workplace: Workplace) -> None:
    forge = workplace.forge
    door = str(forge.webhook_url)
    with away(workplace):
        opened(workplace)
        told = next(each for each in forge.deliveries if each.event == "pull_request")
    # GitHub's log says that it failed, and it came.
    assert httpx.post(door, content=told.body, headers=dict(told.headers)).status_code == 202  # type: ignore[arg-type]
    sent = len(forge.deliveries)
    assert hold_round(workplace) == Round(held=True, asked=sent - 1, missing=sent - 1)
    assert [each.redelivery for each in forge.deliveries if each.guid == told.guid] == [False]
    workplace.work()
    pass_time(workplace)
    assert hold_round(workplace) == Round(held=True)


def test_nobody_takes_a_turn_within_five_minutes(workplace: Workplace) -> None:
    forges = Forges(workplace.settings, workplace.clock)
    ours = Redelivery(workplace.database, workplace.settings, forges, workplace.clock)
    assert ours.round() == Round(held=True)
    assert ours.round() == Round(held=False)
    assert hold_round(workplace) == Round(held=False)
    pass_time(workplace, EVERY - timedelta(seconds=30))
    assert hold_round(workplace) == Round(held=False)
    pass_time(workplace, timedelta(seconds=30))
    assert hold_round(workplace) == Round(held=True)
    assert ours.round() == Round(held=False)
    forges.close()


@pytest.mark.parametrize("where", [("GET", "/deliveries$"), ("POST", "/attempts$")], ids=["the log", "an attempt"])
def test_a_rate_limit_is_waited_for_by_all_processes(workplace: Workplace, where: tuple[str, str]) -> None:
    forge = workplace.forge
    with away(workplace):
        opened(workplace)
    sent = len(forge.deliveries)
    forge.fail(secondary_limit(1800), *where)
    assert hold_round(workplace).held
    assert len(forge.deliveries) == sent
    requests = len(forge.requests)
    for _ in range(5):
        pass_time(workplace)
        assert hold_round(workplace) == Round(held=False)
    assert len(forge.requests) == requests
    pass_time(workplace, timedelta(minutes=6))
    assert hold_round(workplace) == Round(held=True, asked=sent, missing=sent)
    assert len(forge.deliveries) == 2 * sent


def test_a_forge_that_fails_is_asked_again_in_the_next_round(workplace: Workplace) -> None:
    forge = workplace.forge
    with away(workplace):
        opened(workplace)
    sent = len(forge.deliveries)
    forge.fail(server_error(), "GET", "/deliveries$", times=3)
    assert hold_round(workplace) == Round(held=True)
    pass_time(workplace)
    assert hold_round(workplace).asked == sent


def test_one_that_github_does_not_have_any_more_holds_up_no_other(workplace: Workplace) -> None:
    forge = workplace.forge
    with away(workplace):
        opened(workplace)
    sent = len(forge.deliveries)
    forge.fail(Failure("gone", 404, "Not Found"), "POST", "/attempts$")
    assert hold_round(workplace) == Round(held=True, asked=sent - 1, missing=sent - 1)


def test_what_never_arrives_is_asked_for_ever_more_seldom_and_comes_when_it_can(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.work()
    with away(workplace):
        forge.comment(pull, "/gradproof help", by="ada")
        at = []
        for minutes in range(0, 150, 5):
            if hold_round(workplace).asked:
                at.append(minutes)
            pass_time(workplace)
    assert at == [0, 5, 15, 35, 75, 135]
    comments = len(forge.comments(pull))
    came = []
    for _ in range(12):
        came.append(hold_round(workplace).asked)
        pass_time(workplace)
    assert came == [0] * 9 + [1] + [0] * 2
    workplace.work()
    assert len(forge.comments(pull)) == comments + 1


def test_fifty_are_asked_for_in_a_round_the_oldest_first(workplace: Workplace) -> None:
    forge = workplace.forge
    with away(workplace):
        for _ in range(MOST_A_ROUND + 10):
            forge.send("ping", ZEN)
    guids = [each.guid for each in forge.deliveries]
    assert hold_round(workplace) == Round(held=True, asked=MOST_A_ROUND, missing=MOST_A_ROUND + 10)
    pass_time(workplace)
    assert hold_round(workplace) == Round(held=True, asked=10, missing=10)
    assert [each.guid for each in forge.deliveries if each.redelivery] == guids
    # A second between writes, as GitHub asks for.
    assert workplace.clock.waited == MOST_A_ROUND + 10 - 2


def test_the_log_is_read_back_to_where_the_last_round_found_nothing_missing(workplace: Workplace) -> None:
    forge = workplace.forge
    for _ in range(120):
        forge.send("ping", ZEN)
    hold_round(workplace)
    assert len(asked(workplace, "GET")) == 2
    pass_time(workplace, timedelta(hours=1))
    with away(workplace):
        forge.send("ping", ZEN)
    assert hold_round(workplace) == Round(held=True, asked=1, missing=1)
    assert len(asked(workplace, "GET")) == 4
    pass_time(workplace, timedelta(hours=1))
    forge.send("ping", ZEN)
    assert hold_round(workplace) == Round(held=True)
    assert len(asked(workplace, "GET")) == 5


def test_what_is_older_than_three_days_is_given_up(workplace: Workplace) -> None:
    forge = workplace.forge
    with away(workplace):
        forge.send("ping", ZEN)
        pass_time(workplace, timedelta(hours=71))
        assert hold_round(workplace).asked == 1
        pass_time(workplace, timedelta(hours=2))
    assert hold_round(workplace) == Round(held=True)  # its second attempt is two hours old
    assert len(asked(workplace)) == 1


def test_a_service_without_github_asks_nobody(workplace: Workplace) -> None:
    settings = workplace.settings.model_copy(update={"github_app_id": ""})
    assert not settings.github_is_set
    done = Redelivery(workplace.database, settings, Forges(settings), workplace.clock).round()
    assert (done, workplace.forge.requests) == (Round(held=False), [])


def test_a_control_worker_does_it_soon_after_it_was_started(workplace: Workplace) -> None:
    forge = workplace.forge
    with away(workplace):
        forge.send("ping", ZEN)
    attempt = forge.hold("POST", "/attempts$")
    workplace.runner.start()
    attempt.wait_reached()
    attempt.release()
    workplace.runner.stop()
    workplace.runner.join()
    workplace.settle()
    assert [(each.redelivery, each.status) for each in forge.deliveries] == [(False, 0), (True, 202)]


def _attempt(number: int, guid: str, *, status: str = "OK", code: int = 200, again: bool = False) -> HookDelivery:
    at = datetime(2026, 11, 30, tzinfo=UTC) + timedelta(minutes=number)
    return HookDelivery(id=number, guid=guid, delivered_at=at, redelivery=again, status=status, status_code=code)


def test_lost_is_what_no_attempt_brought() -> None:
    failed = {"status": "Invalid HTTP Response: 503", "code": 503}
    log = [
        _attempt(9, "twice", **failed, again=True),  # type: ignore[arg-type]
        _attempt(8, "old", **failed, again=True),  # type: ignore[arg-type]
        _attempt(7, "late", again=True),
        _attempt(6, "once", status="failed to connect to host", code=0),
        _attempt(5, "late", **failed),  # type: ignore[arg-type]
        _attempt(4, "taken", status="Accepted", code=202),
        _attempt(3, "twice", **failed),  # type: ignore[arg-type]
    ]
    assert [(each.latest.guid, each.latest.id, each.attempts) for each in lost(log)] == [
        ("twice", 9, 2), ("once", 6, 1),
    ]  # fmt: skip
