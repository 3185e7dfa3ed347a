"""Who works, what waits, which GPUs there are, what was lost: seen by operators and by members of one project."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.accounts.access import EVERYTHING, SYSTEM, Subject
from services.database import Database
from services.database.base import FromNow, utc_now
from services.jobs.model import DeviceState
from services.jobs.models import WorkerRow
from services.oversight import WorkplaceService
from services.settings import Settings
from tests.team_rows import Rows, days_ago


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


@pytest.fixture
def workplace(database: Database, service_settings: Settings) -> WorkplaceService:
    return WorkplaceService(database, service_settings)


def test_a_queue_says_what_waits_since_when_and_who_serves_it(rows: Rows, workplace: WorkplaceService) -> None:
    analysis = rows.analysis(passed=None)
    rows.job(analysis, created_at=utc_now() - timedelta(seconds=90))
    rows.job(analysis)
    rows.job(analysis, state="leased", lease_until=utc_now(), owner="one", attempt=1)
    rows.job(analysis, queue="gpu.cuda", device_class="cuda")
    rows.worker("one", ["cpu", "control"])
    queues = {queue.name: queue for queue in workplace.look(SYSTEM).queues}
    assert (queues["cpu"].waiting, queues["cpu"].running, queues["cpu"].workers) == (2, 1, 1)
    assert queues["cpu"].oldest_s is not None
    assert queues["cpu"].oldest_s >= 90
    assert not queues["cpu"].abandoned
    assert queues["gpu.cuda"].abandoned
    assert (queues["control"].waiting, queues["control"].workers) == (0, 1)


def test_a_worker_that_fell_silent_serves_nobody(rows: Rows, workplace: WorkplaceService, database: Database) -> None:
    rows.worker("one", ["cpu"])
    rows.worker("two", ["cpu"])
    with database.unit_of_work() as uow:
        row = uow.session.get(WorkerRow, "two")
        assert row is not None
        row.seen_at = FromNow(timedelta(seconds=-60))
    seen = workplace.look(SYSTEM)
    assert [(worker.id, worker.silent) for worker in seen.workers] == [("one", False), ("two", True)]
    assert [queue.workers for queue in seen.queues] == [1]


def test_devices_have_their_holders(rows: Rows, workplace: WorkplaceService) -> None:
    told = {"id": "GPU-1", "name": "NVIDIA H200", "state": "serving", "detail": ""}
    rows.worker("gpu", ["gpu.cuda"], device=told)
    (held,) = workplace.look(SYSTEM).devices
    assert (held.device.state, held.worker, held.queues) == (DeviceState.SERVING, "gpu", ("gpu.cuda",))


def test_analyses_and_lost_jobs_are_those_that_may_be_read(rows: Rows, workplace: WorkplaceService) -> None:
    mine, foreign = rows.project("mine"), rows.project("foreign")
    for project in (mine, foreign):
        analysis = rows.analysis(project, passed=None)
        rows.job(analysis, created_at=days_ago(1))
        rows.job(
            analysis, losses=2, attempt=3, state="infra_failed", reason="the worker was lost", finished_at=utc_now()
        )
    member = Subject("user", "u", "U", EVERYTHING, user_id=rows.user("u", "viewer", project=mine))
    seen = workplace.look(member)
    assert [(item.project, item.waiting, item.running) for item in seen.analyses] == [("mine", 1, 0)]
    assert seen.analyses[0].since is not None
    assert [(job.project, job.losses, job.state) for job in seen.lost] == [("mine", 2, "infra_failed")]
    assert len(workplace.look(SYSTEM).lost) == 2
    assert workplace.look(member).queues[0].waiting == 2
