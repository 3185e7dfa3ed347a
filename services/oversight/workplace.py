"""Who works, what waits and since when, which GPUs there are and who has them, what was lost. Reads only.

Workers, queues and devices belong to the installation and are shown to everybody who is signed in; of jobs and analyses
only those of projects that the subject may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from services.accounts.access import Subject
from services.database import Database
from services.jobs import repository as jobs
from services.jobs.model import HeldDevice
from services.oversight import repository
from services.settings import Settings

_WORKERS: Final = 200
_LISTED: Final = 25


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker process. `silent`: not heard of for three heartbeats, so that its jobs will be given to others."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    running: int
    started_at: datetime
    seen_s: float
    silent: bool


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue: what waits, for how long the oldest of it, what is being done, and how many workers serve it."""

    name: str
    waiting: int
    running: int
    oldest_s: float | None
    workers: int

    @property
    def abandoned(self) -> bool:
        """Whether work waits that nobody will take."""
        return self.waiting > 0 and self.workers == 0


@dataclass(frozen=True, slots=True)
class OpenAnalysis:
    """An analysis under way. `since` is that of its oldest waiting job."""

    id: str
    project: str | None
    status: str
    created_at: datetime
    waiting: int
    running: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that lost at least one attempt with its worker."""

    analysis_id: str
    project: str | None
    kind: str
    queue: str
    state: str
    losses: int
    attempt: int
    reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Workplace:
    """All of it, at one moment."""

    workers: tuple[WorkerLine, ...]
    queues: tuple[QueueLine, ...]
    devices: tuple[HeldDevice, ...]
    analyses: tuple[OpenAnalysis, ...]
    lost: tuple[LostJob, ...]


class WorkplaceService:
    """Looks, and never changes anything."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def look(self, subject: Subject) -> Workplace:
        """Everything from one transaction."""
        patience = self._settings.heartbeat * 3
        with self._database.reading() as session:
            workers = tuple(
                WorkerLine(
                    id=row.id,
                    host=row.host,
                    pid=row.pid,
                    version=row.version,
                    queues=tuple(row.queues),
                    running=row.running,
                    started_at=row.started_at,
                    seen_s=seen_s,
                    silent=seen_s > patience.total_seconds(),
                )
                for row, seen_s in repository.workers(session, _WORKERS)
            )
            depths = {depth.queue: depth for depth in jobs.depths(session)}
            serving = [queue for worker in workers if not worker.silent for queue in worker.queues]
            queues = tuple(
                QueueLine(
                    name=name,
                    waiting=depths[name].waiting if name in depths else 0,
                    running=depths[name].running if name in depths else 0,
                    oldest_s=depths[name].oldest_s if name in depths else None,
                    workers=serving.count(name),
                )
                for name in sorted({*depths, *serving})
            )
            return Workplace(
                workers=workers,
                queues=queues,
                devices=jobs.devices(session, patience),
                analyses=tuple(
                    OpenAnalysis(row.id, project, row.status, row.created_at, waiting, running, since)
                    for row, project, waiting, running, since in repository.open_analyses(session, subject, _LISTED)
                ),
                lost=tuple(
                    LostJob(
                        analysis_id=job.analysis_id,
                        project=project,
                        kind=job.kind,
                        queue=job.queue,
                        state=job.state,
                        losses=job.losses,
                        attempt=job.attempt,
                        reason=job.reason or "",
                        created_at=job.created_at,
                    )
                    for job, project in repository.lost_jobs(session, subject, _LISTED)
                ),
            )
