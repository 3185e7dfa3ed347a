"""Asks GitHub to send again what did not arrive: it tries a webhook once, and remembers for three days what it sent.

A round reads the log of the App's deliveries back to where the last one found nothing missing, and asks for another
attempt at each webhook of which no attempt arrived. What comes then takes the way of every webhook, under its old id:
something that is asked for twice is a duplicate, and harmless. One process holds a round at a time, and none holds one
within five minutes of the last. This module must not know what a webhook is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from services.database import Database, new_id
from services.forges import redelivery_repository as repository
from services.forges.clocks import Clock, SystemClock
from services.forges.connections import Forges
from services.forges.errors import ForgeError, ForgeNotFoundError, ForgeRejectedError, RateLimitedError
from services.forges.github.app import GithubApp
from services.forges.github.models import HookDelivery
from services.jobs.repository import take_lease
from services.settings import Settings

log = structlog.get_logger(__name__)

# People wait for a check a few minutes before they ask why; more often would be asking mostly for nothing.
EVERY: Final = timedelta(minutes=5)
# With a second between writes a round of 50 takes less than a minute, and 600 an hour are far from the limits.
MOST_A_ROUND: Final = 50
# GitHub keeps deliveries for three days, and sends nothing again that is older.
_KEPT_BY_GITHUB: Final = timedelta(days=3)
# An attempt is logged when it has ended, ten seconds after it began at most, and the log may lag behind.
_LOGGED_LATE: Final = timedelta(minutes=10)
# The first time is at once, then after 5, 10, 20 and 40 minutes, then hourly: what is refused each time, as for a wrong
# secret, costs some 75 attempts in three days, and comes within an hour when that is set right.
_LONGEST_WAIT: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Lost:
    """A webhook of which no attempt arrived. `latest` is the last attempt, `since` the moment of the first."""

    latest: HookDelivery
    since: datetime
    attempts: int

    def due_at(self) -> datetime:
        """When it may be asked for again."""
        if self.attempts == 1:
            return self.since
        wait: timedelta = EVERY * 2 ** min(self.attempts - 2, 10)
        # Half a round less: an attempt is logged some seconds after the round that asked for it.
        return self.latest.delivered_at + min(wait, _LONGEST_WAIT) - EVERY / 2


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did. `held` is False if it was not our turn; the `asked` for are among the `missing`."""

    held: bool
    asked: int = 0
    missing: int = 0


class Redelivery:
    """One process's part in it."""

    def __init__(self, database: Database, settings: Settings, forges: Forges, clock: Clock | None = None) -> None:
        self._database = database
        self._is_set = settings.github_is_set
        self._forges = forges
        self._clock = clock or SystemClock()

    def round(self, stopping: Callable[[], bool] = lambda: False) -> Round:
        """Look once, and ask for what is missing. GitHub's refusals are logged: a later round makes up for them."""
        if not self._is_set:
            return Round(held=False)
        # A holder of its own for each round: nobody, not even this process, takes a turn before the last has run out.
        holder = new_id()
        with self._database.reading() as session:
            if repository.is_somebodys_turn(session):
                return Round(held=False)
        if not self._keep_turn(holder, EVERY):
            return Round(held=False)
        try:
            return self._look(self._forges.github(), holder, stopping)
        except RateLimitedError as error:
            log.warning("forge_asks_for_silence", what="redelivery", until=error.retry_at.isoformat())
            self._keep_turn(holder, max(error.retry_at - self._clock.now(), EVERY))
        except ForgeError as error:
            log.warning("redelivery_failed", reason=error.message)
        return Round(held=True)

    def _look(self, app: GithubApp, holder: str, stopping: Callable[[], bool]) -> Round:
        sent = self._sent(app)
        if not sent or stopping():
            return Round(held=True)
        found = lost(sent)
        with self._database.reading() as session:
            arrived = repository.taken(session, (each.latest.guid for each in found))
        missing = [each for each in found if each.latest.guid not in arrived]
        now = self._clock.now()
        due = [each for each in missing if each.due_at() <= now][:MOST_A_ROUND]
        asked = 0
        if due:
            # Reading a long log may have taken a while.
            if not self._keep_turn(holder, EVERY):
                return Round(held=True, missing=len(missing))
            for each in due:
                if stopping():
                    return Round(held=True, asked=asked, missing=len(missing))
                if _ask(app, each):
                    asked += 1
                else:
                    missing.remove(each)
            log.info("webhooks_asked_for_again", asked=asked, missing=len(missing))
        newest = max(each.delivered_at for each in sent)
        self._remember(holder, min([newest, *(each.since for each in missing)]) - _LOGGED_LATE)
        return Round(held=True, asked=asked, missing=len(missing))

    def _sent(self, app: GithubApp) -> list[HookDelivery]:
        """What GitHub sent since the last round found nothing missing, within three days; the newest first."""
        with self._database.reading() as session:
            since = repository.looked_through(session)
        oldest = self._clock.now() - _KEPT_BY_GITHUB
        since = oldest if since is None else max(since, oldest)
        found = []
        for each in app.hook_deliveries():
            if each.delivered_at < since:
                break
            found.append(each)
        return found

    def _keep_turn(self, holder: str, duration: timedelta) -> bool:
        with self._database.unit_of_work() as uow:
            return take_lease(uow.session, repository.TURN, holder, duration)

    def _remember(self, holder: str, until: datetime) -> None:
        with self._database.unit_of_work() as uow:
            if repository.looked_through(uow.session) != until:
                repository.remember_looked_through(uow.session, holder, until)


def lost(sent: Iterable[HookDelivery]) -> list[Lost]:
    """Those webhooks whose first attempt is among these, and of which no attempt arrived; the oldest first.

    Where the first is too old to be listed, GitHub sends nothing again, however young later attempts are.
    """
    attempts: dict[str, list[HookDelivery]] = {}
    for each in sent:
        attempts.setdefault(each.guid, []).append(each)
    found = [
        Lost(
            latest=max(several, key=lambda each: each.id),
            since=min(each.delivered_at for each in several),
            attempts=len(several),
        )
        for several in attempts.values()
        if not any(each.arrived for each in several) and not all(each.redelivery for each in several)
    ]
    return sorted(found, key=lambda each: (each.since, each.latest.id))


def _ask(app: GithubApp, missing: Lost) -> bool:
    """Whether GitHub will send it again. Raises `ForgeError` for what may be different later."""
    try:
        app.redeliver(missing.latest.id)
    except (ForgeNotFoundError, ForgeRejectedError) as error:
        log.warning("webhook_not_sent_again", delivery=missing.latest.guid, reason=error.message)
        return False
    return True
