"""What the handler of a job gets to work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog

from services.analyses.work import WorkResults
from services.jobs.errors import LeaseLostError
from services.jobs.model import Claim
from services.settings import Settings
from services.snapshots.store import SnapshotStore
from worker.devices import Gpu
from worker.held import HeldJobs
from worker.patience import patiently

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """Settings, the way to report results, the book of held jobs, and whether the process is to stop.

    `credentials` gives the headers to fetch the source of an analysis with, and may ask a forge for them.
    `gpu` is lent to this job alone, None where it needs none; `condemn` takes it out of service, with the reason.
    """

    settings: Settings
    results: WorkResults
    held: HeldJobs
    stopping: Callable[[], bool]
    credentials: Callable[[str], Mapping[str, str]] = lambda _analysis_id: {}
    gpu: Gpu | None = None
    condemn: Callable[[str], None] = lambda _reason: None

    @property
    def store(self) -> SnapshotStore:
        """The snapshots."""
        return SnapshotStore(self.settings.snapshot_dir)

    @property
    def patience_s(self) -> float:
        """How long a result waits for a database that is away: a restart takes seconds, a fail-over a minute."""
        return max(60.0, 2 * self.settings.lease.total_seconds())

    def load(self, operation: Callable[[], T]) -> T:
        """Read something from the database, however long it takes to come back."""
        return patiently(operation, patience_s=self.patience_s, given_up=self.stopping)

    def report(self, claim: Claim, operation: Callable[[], None]) -> bool:
        """Write a result of a job, if the job is still ours; False (and the job is dropped) if it is not."""
        if not self.held.holds(claim):
            return False
        try:
            patiently(operation, patience_s=self.patience_s, given_up=lambda: not self.held.holds(claim))
        except LeaseLostError:
            log.info("lease_lost", job=claim.job_id, attempt=claim.attempt)
            self.held.drop(claim.job_id)
            return False
        return True

    def end(self, claim: Claim, operation: Callable[[], None]) -> None:
        """Write the last result of a job and let go of it."""
        self.report(claim, operation)
        self.held.drop(claim.job_id)
