"""The heart of a worker process: claims jobs, has them run, keeps their leases, gives them back when it must stop.

Threads, not forked children: what is heavy or dangerous happens in processes of its own (a sandbox, a reader that can
be killed), so a thread here only waits and writes rows. A thread also lives as long as its sandbox, which
`--die-with-parent` demands, and a fork of a process with database connections and threads is never made.
This module must not know Celery, nor what a job of any kind does.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TypeVar

import structlog

from services.analyses.reconciler import Reconciler
from services.analyses.work import WorkResults
from services.checks.repository import forget_results
from services.database import Database, new_id
from services.database.base import utc_now
from services.forges.clocks import Clock
from services.forges.cloning import Cloning
from services.jobs import repository as jobs_repository
from services.jobs.errors import LeaseLostError
from services.jobs.model import CONTROL_QUEUE, Claim, needs_a_device
from services.jobs.models import JobKind
from services.jobs.service import DeviceLeases, JobService
from services.problems import GradproofError
from services.settings import Settings
from services.version import version
from worker.devices import Gpu
from worker.devices.duty import DeviceDuty
from worker.examples import run_own_examples
from worker.fetching import fetch_source
from worker.forging import Forging
from worker.held import HeldJobs
from worker.hooks import keep_telling
from worker.mailing import keep_mailing
from worker.patience import patiently
from worker.probing import probe_targets
from worker.reading import read_source
from worker.redelivering import keep_asking
from worker.tools import Tools

log = structlog.get_logger(__name__)

T = TypeVar("T")
Handler = Callable[[Sequence[Claim], Tools], None]
HANDLERS: Mapping[JobKind, Handler] = {
    JobKind.INGEST: fetch_source,
    JobKind.STATIC: read_source,
    JobKind.EXAMPLES: run_own_examples,
    JobKind.PROBE: probe_targets,
}


class Runner:
    """One worker process. `device` names the GPU for its queues that need one; None: any that is free.

    `forge_clock` is what forges are spoken to by; None: the machine's.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        queues: Sequence[str],
        device: str | None = None,
        *,
        forge_clock: Clock | None = None,
    ) -> None:
        self.id = new_id()
        self._settings = settings
        self._database = database
        self._queues = tuple(queues)
        self._jobs = JobService(database, settings)
        self._held = HeldJobs()
        self._stop = threading.Event()
        self._turns = itertools.count()
        self._started_at = utc_now()
        self._threads: list[threading.Thread] = []
        self._duty: DeviceDuty | None = None
        if any(needs_a_device(queue) for queue in queues):
            self._duty = DeviceDuty(settings, DeviceLeases(database, settings, self.id), device)
        self._tools = Tools(
            settings=settings,
            results=WorkResults(database, settings),
            held=self._held,
            stopping=self._stop.is_set,
        )
        self._forging: Forging | None = None
        if CONTROL_QUEUE in queues:
            self._forging = Forging(settings, database, self.id, forge_clock)
            self._tools = replace(self._tools, credentials=Cloning(database, self._forging.forges).headers)

    def start(self) -> None:
        """Begin to report in, to renew leases, and, in a control worker, to look after lost jobs."""
        if self._duty is not None:
            self._thread("device", partial(self._look_after, self._duty))
        self._thread("heartbeat", self._beat)
        if CONTROL_QUEUE in self._queues:
            self._thread("reconciler", self._reconcile)
            self._thread("hooks", partial(keep_telling, self._database, self._settings, self._stop))
            if self._settings.mail_server is not None:
                self._thread("mail", partial(keep_mailing, self._database, self._settings, self._stop))
        if self._forging is not None:
            self._thread("redelivery", partial(keep_asking, self._forging.redelivery, self._settings, self._stop))

    def stop(self) -> None:
        """Give all jobs back at once and take no more. May be called from a signal handler: it only sets a flag."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the jobs are given back and the worker has said goodbye."""
        for thread in self._threads:
            thread.join()
        if self._duty is not None:
            try:
                self._duty.close()
            except Exception as error:  # noqa: BLE001 - then the lease of the device runs out
                log.warning("device_not_given_up", error=f"{type(error).__name__}: {error}")
        if self._forging is not None:
            self._forging.close()

    def serve(self) -> int:
        """Work until all queues of this worker are empty; returns how many jobs were taken up.

        What a doorbell calls, whichever queue it came from. Tasks towards forges take turns with jobs.
        """
        taken = 0
        while not self._stop.is_set():
            forged = self._forging is not None and self._patiently(self._forging.work)
            claims, gpu = self._take()
            if not claims:
                if forged:
                    continue
                break
            taken += len(claims)
            try:
                self._run(claims, gpu)
            finally:
                for claim in claims:
                    self._held.drop(claim.job_id)
                if gpu is not None and self._duty is not None:
                    self._duty.hand_back()
        return taken

    def take(self) -> tuple[Claim, ...]:
        """Claim what is to be done next, in whichever queue; empty if there is nothing.

        Control jobs go first, since they are short; the other queues take turns, so that a long line in one does not
        keep the others waiting. A job that needs a GPU is taken when it is there, fit and idle.
        """
        claims, _ = self._take()
        return claims

    def _take(self) -> tuple[tuple[Claim, ...], Gpu | None]:
        for queue in self._order():
            gpu = None
            if needs_a_device(queue):
                gpu = None if self._duty is None else self._duty.lend()
                if gpu is None:
                    continue
            claims: tuple[Claim, ...] = ()
            try:
                claims = self._patiently(partial(self._jobs.claim, queue, self.id, forget_results))
                self._held.add(claims)
            finally:
                if not claims and gpu is not None and self._duty is not None:
                    self._duty.hand_back(used=False)
            if claims:
                return claims, gpu
        return (), None

    def _order(self) -> tuple[str, ...]:
        others = [queue for queue in self._queues if queue != CONTROL_QUEUE]
        turn = next(self._turns) % len(others) if others else 0
        first = (CONTROL_QUEUE,) if CONTROL_QUEUE in self._queues else ()
        return (*first, *others[turn:], *others[:turn])

    def _run(self, claims: Sequence[Claim], gpu: Gpu | None) -> None:
        tools = self._tools
        if gpu is not None and self._duty is not None:
            tools = replace(tools, gpu=gpu, condemn=self._duty.condemn)
        try:
            HANDLERS[claims[0].kind](claims, tools)
        except Exception as error:
            log.exception("job_failed", jobs=[claim.job_id for claim in claims])
            for claim in claims:
                if self._held.holds(claim):
                    self._lose(claim, _reason(error))

    def _lose(self, claim: Claim, reason: str) -> None:
        try:
            self._patiently(lambda: self._tools.results.lost(claim, reason))
        except LeaseLostError:
            log.info("lease_lost", job=claim.job_id)
        except Exception:
            log.exception("job_abandoned", job=claim.job_id)

    def _patiently(self, operation: Callable[[], T]) -> T:
        return patiently(operation, patience_s=self._tools.patience_s, given_up=self._stop.is_set)

    # ------------------------------------------------------------------------------------------ threads

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _beat(self) -> None:
        while True:
            try:
                self._renew()
                self._report()
            except Exception as error:  # noqa: BLE001 - a missed beat is made up for by the next one
                log.warning("heartbeat_failed", error=f"{type(error).__name__}: {error}")
            if self._stop.wait(self._settings.heartbeat.total_seconds()):
                break
        self._say_goodbye()

    def _look_after(self, duty: DeviceDuty) -> None:
        """In a thread of its own: nvidia-smi may take seconds, and leases don't wait."""
        while not self._stop.is_set():
            try:
                duty.look()
            except Exception as error:  # noqa: BLE001 - it is looked at again
                log.warning("device_not_looked_at", error=f"{type(error).__name__}: {error}")
            # Three heartbeats: a driver without persistence mode takes a second for an answer.
            self._stop.wait(3 * self._settings.heartbeat.total_seconds())

    def _renew(self) -> None:
        if self._duty is not None:
            self._duty.renew()
        if self._forging is not None:
            self._forging.renew()
        claims = self._held.claims()
        if not claims:
            return
        for claim in self._held.keep_only(claims, self._jobs.renew(claims)):
            log.info("job_taken_away", job=claim.job_id, attempt=claim.attempt)

    def _report(self) -> None:
        with self._database.unit_of_work() as uow:
            jobs_repository.report_worker(
                uow.session,
                {
                    "id": self.id,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "version": version(),
                    "queues": list(self._queues),
                    "devices": sorted({queue.removeprefix("gpu.") for queue in self._queues if queue != CONTROL_QUEUE}),
                    "device": None if self._duty is None else asdict(self._duty.told),
                    "running": len(self._held.claims()),
                    "started_at": self._started_at,
                },
            )

    def _say_goodbye(self) -> None:
        claims = self._held.claims()
        # First the book, so that running jobs see that they are to stop, then the rows.
        self._held.keep_only(claims, frozenset())
        try:
            returned = self._jobs.give_back(claims, "its worker was shut down")
            if self._forging is not None:
                self._forging.give_back()
            with self._database.unit_of_work() as uow:
                jobs_repository.forget_worker(uow.session, self.id)
            log.info("worker_stopped", returned=returned)
        except Exception as error:  # noqa: BLE001 - then the leases run out and the reconciler takes over
            log.warning("goodbye_failed", error=f"{type(error).__name__}: {error}")

    def _reconcile(self) -> None:
        reconciler = Reconciler(self._database, self._settings, self.id)
        while not self._stop.wait(self._settings.reconcile_every.total_seconds()):
            try:
                if reconciler.tick().held and self._forging is not None:
                    self._forging.look_after()
            except Exception as error:  # noqa: BLE001 - the next round, or another process, makes up for it
                log.warning("reconciler_failed", error=f"{type(error).__name__}: {error}")
        try:
            reconciler.resign()
        except Exception as error:  # noqa: BLE001 - then the lease runs out
            log.warning("resign_failed", error=f"{type(error).__name__}: {error}")


def _reason(error: Exception) -> str:
    """What clients may read about a fault of ours: the text of a driver's error holds statements and values."""
    if isinstance(error, GradproofError):
        return error.message
    return f"an internal error ({type(error).__name__}), described in the log of its worker"
