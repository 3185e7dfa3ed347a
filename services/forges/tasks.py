"""What workers do with tasks towards forges, whatever they are: claim, keep, end, put off, give up.

The same rules as for jobs: the database is the truth, a write shows its owner and attempt, and a worker that dies costs
a try and nothing else. What is done is written so that doing it twice does no harm. This module must not know what a
task does, nor how a forge is spoken to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import structlog

from services.database import Database, UnitOfWork
from services.database.base import utc_now
from services.forges import repository, task_repository
from services.forges.task_repository import TaskClaim
from services.jobs.model import CONTROL_QUEUE
from services.settings import Settings

log = structlog.get_logger(__name__)

# 15 s, 1 min, 4 min, 16 min, then an hour: seven tries outlast three hours of a forge that is down.
_FIRST_WAIT: Final = timedelta(seconds=15)
_LONGEST_WAIT: Final = timedelta(hours=1)
MOST_FAILURES: Final = 7
# A forge redelivers within three days, and an answer may be asked about for a while; service facts say 30 days.
_KEPT: Final = timedelta(days=30)


class ForgeTasks:
    """The tasks, as one process sees them."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def claim(self, owner: str) -> TaskClaim | None:
        """Take what is to be done next, if there is something. Mostly there is nothing: that costs one read."""
        with self._database.reading() as session:
            if not task_repository.has_due_task(session):
                return None
        with self._database.unit_of_work() as uow:
            return task_repository.claim_task(uow.session, owner, self._settings.lease)

    def renew(self, items: Collection[TaskClaim]) -> frozenset[str]:
        """Renew leases; the ids of the tasks that are still owned."""
        with self._database.unit_of_work() as uow:
            return task_repository.renew_tasks(uow.session, items, self._settings.lease)

    @contextmanager
    def owning(self, item: TaskClaim) -> Iterator[UnitOfWork]:
        """A transaction in which the task is surely ours. Raises `LeaseLostError`: then nothing may be written."""
        with self._database.unit_of_work() as uow:
            task_repository.fence_task(uow.session, item, self._settings.lease)
            yield uow

    def finish(self, item: TaskClaim, reason: str | None = None) -> None:
        """It is done; `reason` says what came of it, where that is not plain. Raises `LeaseLostError`."""
        with self._database.unit_of_work() as uow:
            task_repository.end_task(uow.session, item, "done", reason)

    def fail(self, item: TaskClaim, reason: str) -> None:
        """It can't be done, and trying again won't help. Raises `LeaseLostError`."""
        with self._database.unit_of_work() as uow:
            task_repository.end_task(uow.session, item, "failed", reason)

    def retry(self, item: TaskClaim, reason: str) -> bool:
        """It failed and may succeed later: waits grow with each failure. False: that was the last one, given up."""
        if item.failures + 1 >= MOST_FAILURES:
            self.fail(item, f"given up after {MOST_FAILURES} tries: {reason}")
            return False
        with self._database.unit_of_work() as uow:
            task_repository.postpone_task(uow.session, item, due=_wait(item.failures), reason=reason, failed=True)
        return True

    def wait_until(self, item: TaskClaim, moment: datetime, reason: str) -> None:
        """The forge asks for silence until then: that is no failure. All tasks of the installation wait."""
        with self._database.unit_of_work() as uow:
            if item.installation_id is not None:
                repository.quieten(uow.session, item.installation_id, moment, reason)
            due = max(moment - utc_now(), timedelta(0))
            task_repository.postpone_task(uow.session, item, due=due, reason=reason, failed=False)

    def give_back(self, items: Collection[TaskClaim]) -> None:
        """Return tasks in an orderly way: another worker begins at once, and nothing counts as failed."""
        for item in items:
            with self._database.unit_of_work() as uow:
                reason = "its worker was shut down"
                if task_repository.postpone_task(uow.session, item, due=timedelta(0), reason=reason, failed=False):
                    uow.ring(CONTROL_QUEUE)

    def look_after(self) -> int:
        """What the reconciler does: free lost leases, ring for what is due, forget what is old; returns how many."""
        with self._database.unit_of_work() as uow:
            lost = task_repository.lost_tasks(uow.session)
            for item in lost:
                reason = f"worker {item.owner} stopped renewing its lease"
                log.warning("forge_task_recovered", task=item.task_id, owner=item.owner)
                if item.failures + 1 >= MOST_FAILURES:
                    task_repository.end_task(
                        uow.session, item, "failed", f"given up after {MOST_FAILURES} tries: {reason}"
                    )
                else:
                    task_repository.postpone_task(uow.session, item, due=timedelta(0), reason=reason, failed=True)
            if task_repository.has_due_task(uow.session):
                uow.ring(CONTROL_QUEUE)
            task_repository.forget_tasks(uow.session, _KEPT)
            task_repository.forget_deliveries(uow.session, _KEPT)
        return len(lost)


def _wait(failures: int) -> timedelta:
    wait: timedelta = _FIRST_WAIT * 4**failures
    return min(wait, _LONGEST_WAIT)
