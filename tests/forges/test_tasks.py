"""Tasks towards forges on both databases: one at a time for an installation, fenced, put off, given up, recovered."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from services.database import Database
from services.database.base import FromNow, utc_now
from services.forges import repository, task_repository
from services.forges.events import InstallationRef
from services.forges.models import ForgeTaskRow, InstallationRow
from services.forges.queueing import queue_task
from services.forges.task_repository import TaskClaim
from services.forges.tasks import MOST_FAILURES, ForgeTasks
from services.jobs.errors import LeaseLostError
from services.settings import Settings


@pytest.fixture
def tasks(database: Database, service_settings: Settings) -> ForgeTasks:
    return ForgeTasks(database, service_settings.model_copy(update={"lease": timedelta(hours=1)}))


def installation(database: Database, number: str) -> str:
    with database.unit_of_work() as uow:
        ref = InstallationRef(external_id=number, account=f"account-{number}")
        row = repository.ensure_installation(uow.session, "github", ref, "default")
        uow.session.flush()
        return row.id


def queue(database: Database, subject: str, installation_id: str | None, **rest: object) -> None:
    with database.unit_of_work() as uow:
        queue_task(uow.session, "publish", subject, installation_id=installation_id, **rest)  # type: ignore[arg-type]


def rows(database: Database) -> list[ForgeTaskRow]:
    with database.reading() as session:
        return list(session.scalars(select(ForgeTaskRow).order_by(ForgeTaskRow.id)))


def lose_leases(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.session.execute(
            update(ForgeTaskRow)
            .where(ForgeTaskRow.state == "leased")
            .values(lease_until=FromNow(-timedelta(seconds=1)))
        )


def claimed(tasks: ForgeTasks, owner: str = "worker-1") -> TaskClaim:
    claim = tasks.claim(owner)
    assert claim is not None
    return claim


def test_tasks_of_one_installation_are_done_one_at_a_time(database: Database, tasks: ForgeTasks) -> None:
    one, other = installation(database, "1"), installation(database, "2")
    for subject in ("a", "b"):
        queue(database, subject, one)
    queue(database, "c", other)
    first, second = claimed(tasks, "worker-1"), claimed(tasks, "worker-2")
    assert {first.installation_id, second.installation_id} == {one, other}
    assert tasks.claim("worker-3") is None
    tasks.finish(first if first.installation_id == one else second)
    assert claimed(tasks, "worker-3").installation_id == one


def test_what_waits_already_is_not_queued_twice_but_waits_anew(database: Database, tasks: ForgeTasks) -> None:
    queue(database, "a", None, after=timedelta(hours=1), details={"run": "x"})
    queue(database, "a", None, after=timedelta(0), details={"other": 1})
    (row,) = rows(database)
    assert row.details == {"run": "x", "other": 1}
    first = claimed(tasks)
    queue(database, "a", None)  # it is under way: what is new is done after it
    assert len(rows(database)) == 2
    assert claimed(tasks, "worker-2").task_id != first.task_id


def test_a_task_that_is_not_due_waits(database: Database, tasks: ForgeTasks) -> None:
    queue(database, "a", None, after=timedelta(hours=1))
    assert tasks.claim("worker-1") is None


def test_silence_holds_for_all_tasks_of_the_installation_and_is_no_failure(
    database: Database, tasks: ForgeTasks
) -> None:
    quiet, other = installation(database, "1"), installation(database, "2")
    queue(database, "a", quiet)
    tasks.wait_until(claimed(tasks), utc_now() + timedelta(minutes=5), "a secondary rate limit")
    queue(database, "b", quiet)
    assert tasks.claim("worker-1") is None
    queue(database, "c", other)
    assert claimed(tasks).installation_id == other
    with database.unit_of_work() as uow:
        row = uow.session.get_one(InstallationRow, quiet)
        assert row.quiet_reason == "a secondary rate limit"
        row.quiet_until = utc_now() - timedelta(seconds=1)
        uow.session.execute(update(ForgeTaskRow).values(due_at=FromNow(-timedelta(seconds=1))))
    again = claimed(tasks)
    assert again.failures == 0


def test_waits_grow_and_the_last_failure_is_given_up_with_its_reason(database: Database, tasks: ForgeTasks) -> None:
    queue(database, "a", None)
    waits = []
    for _ in range(MOST_FAILURES - 1):
        assert tasks.retry(claimed(tasks), "502")
        (row,) = rows(database)
        waits.append((row.due_at - utc_now()).total_seconds())
        with database.unit_of_work() as uow:
            uow.session.execute(update(ForgeTaskRow).values(due_at=FromNow(-timedelta(seconds=1))))
    assert [round(wait / 15) for wait in waits] == [1, 4, 16, 64, 240, 240]
    assert not tasks.retry(claimed(tasks), "502")
    (row,) = rows(database)
    assert (row.state, row.reason) == ("failed", f"given up after {MOST_FAILURES} tries: 502")
    assert tasks.claim("worker-1") is None


def test_a_dead_worker_costs_a_try_and_writes_nothing_more(database: Database, tasks: ForgeTasks) -> None:
    queue(database, "a", installation(database, "1"))
    lost = claimed(tasks)
    assert tasks.look_after() == 0
    assert tasks.renew([lost]) == {lost.task_id}
    lose_leases(database)
    assert tasks.look_after() == 1
    again = claimed(tasks, "worker-2")
    assert (again.task_id, again.attempt, again.failures) == (lost.task_id, 2, 1)
    assert tasks.renew([lost]) == frozenset()
    with pytest.raises(LeaseLostError), tasks.owning(lost):
        pytest.fail("a transaction was begun without the lease")
    with pytest.raises(LeaseLostError):
        tasks.finish(lost)
    tasks.finish(again, "done")
    (row,) = rows(database)
    assert (row.state, row.reason) == ("done", "done")


def test_what_is_given_back_counts_as_nothing(database: Database, tasks: ForgeTasks, rung: list[str]) -> None:
    queue(database, "a", None)
    tasks.give_back([claimed(tasks)])
    assert rung == ["control"]
    assert claimed(tasks, "worker-2").failures == 0


def test_the_reconciler_rings_for_what_is_due(database: Database, tasks: ForgeTasks, rung: list[str]) -> None:
    queue(database, "a", None, after=timedelta(hours=1))
    tasks.look_after()
    assert rung == []
    queue(database, "b", None)
    tasks.look_after()
    assert rung == ["control"]


def test_what_is_old_is_forgotten(database: Database, tasks: ForgeTasks) -> None:
    queue(database, "a", None)
    tasks.finish(claimed(tasks))
    queue(database, "b", None)
    with database.unit_of_work() as uow:
        record = {"forge": "github", "delivery_id": "d", "event": "push", "action": "", "payload": {}}
        assert task_repository.record_delivery(uow.session, **record)
        assert not task_repository.record_delivery(uow.session, **record)
        uow.session.execute(update(ForgeTaskRow).values(due_at=FromNow(-timedelta(days=31))))
        assert task_repository.forget_deliveries(uow.session, timedelta(days=30)) == 0
        assert task_repository.forget_deliveries(uow.session, -timedelta(days=1)) == 1
    tasks.look_after()
    assert [row.key for row in rows(database)] == ["publish:b"]
