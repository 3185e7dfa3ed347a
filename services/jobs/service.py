"""What every worker does with jobs, whatever they are: claim, keep, give back.

What a job's end means for its analysis is not known here (`services.analyses.work`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from sqlalchemy.orm import Session

from services.database import Database
from services.jobs import repository
from services.jobs.model import Claim, HeldDevice
from services.settings import Settings

ForgetResults = Callable[[Session, Collection[str]], None]

# On PostgreSQL, workers that look at the same moment choose the same analysis, wait for its lock one after the other,
# and may find nothing left. Who then went to sleep would leave other analyses waiting until a doorbell rings again.
_LOOKS = 8


class JobService:
    """Use cases over jobs; each is one transaction."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def claim(self, queue: str, owner: str, forget: ForgetResults) -> tuple[Claim, ...]:
        """Claim what is to be done next in `queue`: a batch of probe jobs of one analysis, or one other job.

        `forget(session, job ids)` drops what an earlier, lost attempt of the claimed jobs had stored already.
        """
        for _ in range(_LOOKS):
            with self._database.unit_of_work() as uow:
                analysis_id = repository.next_analysis(uow.session, queue)
                if analysis_id is None:
                    return ()
                claims = self._claim_of(uow.session, analysis_id, queue, owner, forget)
            if claims:
                return claims
        return ()

    def _claim_of(
        self, session: Session, analysis_id: str, queue: str, owner: str, forget: ForgetResults
    ) -> tuple[Claim, ...]:
        """Empty if another worker was quicker to take what this analysis had."""
        if repository.lock_analysis(session, analysis_id) is None:
            return ()
        claims = repository.claim(
            session,
            analysis_id=analysis_id,
            queue=queue,
            owner=owner,
            lease=self._settings.lease,
            batch=self._settings.target_batch,
        )
        repeated = [item.job_id for item in claims if item.attempt > 1]
        if repeated:
            forget(session, repeated)
        if claims:
            repository.mark_started(session, analysis_id)
        return claims

    def renew(self, claims: Iterable[Claim]) -> frozenset[str]:
        """Renew the leases of jobs of this process; returns the ids it still owns. The others were taken away."""
        with self._database.unit_of_work() as uow:
            return repository.renew(uow.session, claims, self._settings.lease)

    def give_back(self, claims: Iterable[Claim], reason: str) -> int:
        """Return jobs in an orderly way, so that another worker begins at once; no attempt is counted as lost.

        Returns how many were still owned.
        """
        returned = 0
        by_analysis: dict[str, list[Claim]] = {}
        for item in claims:
            by_analysis.setdefault(item.analysis_id, []).append(item)
        for analysis_id, items in sorted(by_analysis.items()):
            with self._database.unit_of_work() as uow:
                repository.lock_analysis(uow.session, analysis_id)
                for item in items:
                    if repository.give_back(uow.session, item, reason=reason, lost=False) is not None:
                        returned += 1
                        uow.ring(item.queue)
        return returned

    def devices(self) -> tuple[HeldDevice, ...]:
        """The GPUs of the workers that were heard of lately, and the workers that would like one."""
        with self._database.reading() as session:
            return repository.devices(session, self._settings.heartbeat * 3)


class DeviceLeases:
    """The leases of GPUs in the database, as one worker holds them: two containers don't see each other's locks."""

    def __init__(self, database: Database, settings: Settings, owner: str) -> None:
        self._database = database
        self._settings = settings
        self._owner = owner

    def take(self, uuid: str) -> bool:
        """Take or renew the lease of a device; False if another worker has it."""
        with self._database.unit_of_work() as uow:
            return repository.take_lease(uow.session, _lease_of(uuid), self._owner, self._settings.lease)

    def drop(self, uuid: str) -> None:
        """Give it up, if it is ours."""
        with self._database.unit_of_work() as uow:
            repository.drop_lease(uow.session, _lease_of(uuid), self._owner)


def _lease_of(uuid: str) -> str:
    return f"device:{uuid}"
