"""Finds what got lost and sets it going again: jobs of dead workers, doorbells nobody heard, unsettled analyses, and
work for devices that no worker has. It ends acceptances whose date has come, has digests written that are due, and has
what is no longer kept dropped, a little at a time.

Any number of control processes may call it; a lease in the database lets one of them do it at a time. There is no
scheduler process that could be down. This module must not know how anything is run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

import structlog

from services.analyses import repository as analyses
from services.analyses.settlement import settle_if_done
from services.analyses.work import give_up
from services.database import Database
from services.digests.service import DigestService
from services.jobs import repository as jobs
from services.jobs.model import CPU_QUEUE
from services.jobs.models import JobRow, JobState
from services.retention import Dropped, Keep, RetentionService
from services.settings import Settings
from services.snapshots.store import SnapshotStore
from services.triage.service import TriageService

log = structlog.get_logger(__name__)

LEASE = "reconciler"
# A retried submission comes within minutes; a day is what clients of other services are used to.
KEYS_KEPT = timedelta(hours=24)
WORKERS_KEPT = timedelta(hours=1)
# Looking for what may be dropped reads all analyses: 0.2 s where there are 10,000.
TIDY_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Tick:
    """What one round did. `held` is False if another process is the reconciler."""

    held: bool
    requeued: int = 0
    given_up: int = 0
    settled: int = 0
    reopened: int = 0
    digests: int = 0
    without_device: int = 0
    rung: tuple[str, ...] = ()
    dropped: Dropped | None = None


class Reconciler:
    """One process's claim to be the reconciler."""

    def __init__(self, database: Database, settings: Settings, holder: str) -> None:
        self._database = database
        self._settings = settings
        self._holder = holder
        # By this process's clock: another one that takes over begins to wait anew.
        self._unserved_since: dict[str, float] = {}
        self._retention = RetentionService(database, SnapshotStore(settings.snapshot_dir))
        self._triage = TriageService(database)
        self._digests = DigestService(database, settings)
        self._tidy_at = 0.0

    def tick(self) -> Tick:
        """One round, if the lease is ours."""
        with self._database.unit_of_work() as uow:
            if not jobs.take_lease(uow.session, LEASE, self._holder, self._settings.reconcile_every * 4):
                return Tick(held=False)
        requeued, given_up = self._recover()
        without_device = self._stop_waiting_for_devices()
        settled = self._settle()
        reopened = self._triage.end_acceptances()
        with self._database.unit_of_work() as uow:
            rung = jobs.unheard_queues(uow.session, self._settings.reconcile_every * 2)
            for queue in rung:
                uow.ring(queue)
            analyses.forget_keys(uow.session, KEYS_KEPT)
            jobs.forget_silent_workers(uow.session, WORKERS_KEPT)
        return Tick(
            held=True,
            requeued=requeued,
            given_up=given_up,
            settled=settled,
            reopened=reopened,
            digests=self._digests.queue_due(),
            without_device=without_device,
            rung=tuple(rung),
            dropped=self._tidy(),
        )

    def resign(self) -> None:
        """Let another process take over at once."""
        with self._database.unit_of_work() as uow:
            jobs.drop_lease(uow.session, LEASE, self._holder)

    def _tidy(self) -> Dropped | None:
        """Drop some of what is no longer kept; None if it was looked at lately."""
        if time.monotonic() < self._tidy_at:
            return None
        # First the time: where dropping fails (a store that can't be written), it is not tried every few seconds.
        self._tidy_at = time.monotonic() + TIDY_EVERY_S
        dropped = self._retention.drop(Keep.by(self._settings))
        if dropped.more:
            self._tidy_at = 0.0
        return dropped

    def _recover(self) -> tuple[int, int]:
        with self._database.reading() as session:
            lost = jobs.expired(session)
        requeued = given_up = 0
        for analysis_id, pairs in groupby(lost, key=lambda pair: pair[0]):
            queued, failed = self._recover_analysis(analysis_id, [job_id for _, job_id in pairs])
            requeued += queued
            given_up += failed
        return requeued, given_up

    def _recover_analysis(self, analysis_id: str, job_ids: Sequence[str]) -> tuple[int, int]:
        queued = failed = 0
        with self._database.unit_of_work() as uow:
            row = jobs.lock_analysis(uow.session, analysis_id)
            if row is None:
                return 0, 0
            for job_id in job_ids:
                job = uow.session.get_one(JobRow, job_id)
                reason = f"worker {job.owner} stopped renewing its lease"
                state = jobs.reclaim(uow.session, job_id, reason=reason)
                if state is JobState.QUEUED:
                    queued += 1
                    uow.ring(job.queue)
                elif state is JobState.INFRA_FAILED:
                    failed += 1
                    give_up(uow, row, job, f"{reason}, {job.max_attempts} times", self._settings)
                if state is not None:
                    log.warning("job_recovered", job=job_id, owner=job.owner, state=state.value)
            settle_if_done(uow.session, row)
        return queued, failed

    def _stop_waiting_for_devices(self) -> int:
        """Run without a device what has waited for one for long enough; returns how many jobs.

        A worker that is started anew, or whose device is out of service for a while, is waited for.
        """
        with self._database.reading() as session:
            unserved = jobs.unserved_queues(session, self._settings.heartbeat * 3)
        now = time.monotonic()
        self._unserved_since = {queue: self._unserved_since.get(queue, now) for queue in unserved}
        patience_s = self._settings.device_patience.total_seconds()
        moved = 0
        for queue in (queue for queue, since in self._unserved_since.items() if now - since >= patience_s):
            with self._database.reading() as session:
                waiting = jobs.analyses_waiting(session, queue)
            for analysis_id in waiting:
                with self._database.unit_of_work() as uow:
                    if jobs.lock_analysis(uow.session, analysis_id) is None:
                        continue
                    count = jobs.run_without_device(uow.session, analysis_id, queue)
                    if count:
                        uow.ring(CPU_QUEUE, times=-(-count // self._settings.target_batch))
                log.warning("run_without_device", analysis=analysis_id, queue=queue, jobs=count)
                moved += count
        return moved

    def _settle(self) -> int:
        with self._database.reading() as session:
            waiting = jobs.unsettled(session)
        settled = 0
        for analysis_id in waiting:
            with self._database.unit_of_work() as uow:
                row = jobs.lock_analysis(uow.session, analysis_id)
                settled += row is not None and settle_if_done(uow.session, row)
        return settled
