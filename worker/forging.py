"""Does the tasks towards forges: reads webhooks, has heads analysed, writes what came of it.

A control worker calls it between jobs. One task is done in one thread, and tasks of one installation one at a time, as
the database decides. What a forge answers decides whether a task is done, waits, is tried again, or is given up; each
with the reason. This module must not know what a task writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from services.database import Database
from services.forges.analysing import Analysing
from services.forges.clocks import Clock
from services.forges.connections import Forges
from services.forges.errors import ForgeError, InstallationSuspendedError, RateLimitedError
from services.forges.intake import Intake
from services.forges.publishing import Publishing
from services.forges.redelivery import Redelivery
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.jobs.errors import LeaseLostError
from services.problems import GradproofError, SurroundingsError
from services.settings import Settings

log = structlog.get_logger(__name__)

_TOO_MANY_REQUESTS = 429


class Forging:
    """The tasks towards forges that one worker process does. Safe to use from several threads."""

    def __init__(self, settings: Settings, database: Database, owner: str, clock: Clock | None = None) -> None:
        self.forges = Forges(settings, clock)
        self.redelivery = Redelivery(database, settings, self.forges, clock)
        self._owner = owner
        self._tasks = ForgeTasks(database, settings)
        self._intake = Intake(database, settings, self.forges)
        self._publishing = Publishing(database, settings, self.forges)
        self._handlers: Mapping[str, Callable[[TaskClaim], str]] = {
            "delivery": self._intake.deal_with,
            "analyse": Analysing(database, settings, self.forges).analyse,
            "publish": self._publishing.publish,
        }
        self._lock = threading.Lock()
        self._held: dict[str, TaskClaim] = {}

    def work(self) -> bool:
        """Do one task, if there is one to do."""
        claim = self._tasks.claim(self._owner)
        if claim is None:
            return False
        with self._lock:
            self._held[claim.task_id] = claim
        try:
            self._do(claim)
        finally:
            with self._lock:
                self._held.pop(claim.task_id, None)
        return True

    def renew(self) -> None:
        """Keep what is being done. Called with every heartbeat."""
        self._tasks.renew(self._claims())

    def look_after(self) -> None:
        """Take up what dead workers had, and ring for what is due. Called by the reconciler's thread."""
        self._tasks.look_after()

    def give_back(self) -> None:
        """Give up what is being done: another worker begins it anew. What this one still writes is refused."""
        self._tasks.give_back(self._claims())

    def close(self) -> None:
        """Let go of connections."""
        self.forges.close()

    def _claims(self) -> tuple[TaskClaim, ...]:
        with self._lock:
            return tuple(self._held.values())

    def _do(self, claim: TaskClaim) -> None:
        try:
            self._ended(claim, self._handlers[claim.kind])
        except LeaseLostError:
            log.info("forge_task_taken_away", task=claim.task_id, attempt=claim.attempt)
        except Exception as error:
            log.exception("forge_task_failed", task=claim.task_id, kind=claim.kind)
            self._again(claim, f"an internal error ({type(error).__name__}), described in the log of its worker")

    def _ended(self, claim: TaskClaim, handler: Callable[[TaskClaim], str]) -> None:
        try:
            reason = handler(claim)
        except RateLimitedError as error:
            until = error.retry_at.strftime("%Y-%m-%d %H:%M:%S UTC")
            log.warning("forge_asks_for_silence", task=claim.task_id, until=until, secondary=error.secondary)
            self._publishing.note(claim, f"the forge asks us to wait until {until}: {error.message}")
            self._tasks.wait_until(claim, error.retry_at, error.message)
        except InstallationSuspendedError as error:
            self._publishing.suspended(claim)
            self._give_up(claim, error.message)
        except ForgeError as error:
            self._publishing.note(claim, error.message)
            if error.retry:
                self._again(claim, error.message)
            else:
                self._give_up(claim, error.message)
        except LeaseLostError:
            raise
        except GradproofError as error:
            self._publishing.note(claim, error.message)
            if isinstance(error, SurroundingsError) or error.http_status == _TOO_MANY_REQUESTS:
                self._again(claim, error.message)
            else:
                self._give_up(claim, error.message)
        else:
            self._tasks.finish(claim, reason or None)

    def _again(self, claim: TaskClaim, reason: str) -> None:
        if not self._tasks.retry(claim, reason):
            self._intake.give_up(claim, reason)

    def _give_up(self, claim: TaskClaim, reason: str) -> None:
        log.warning("forge_task_given_up", task=claim.task_id, kind=claim.kind, reason=reason)
        self._intake.give_up(claim, reason)
        self._tasks.fail(claim, reason)
