"""Choosing a digest, and writing what is due into the outbox.

The mail and the beginning of the next period are one transaction: a process that dies loses none and doubles none. This
module must not open a connection; sending is `services.digests.sending`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.accounts.audit import note
from services.accounts.models import UserRow
from services.accounts.users import myself, subject_of_user
from services.database import Database
from services.database.base import utc_now
from services.digests import repository
from services.digests.composing import section
from services.digests.errors import NoMailError, UnknownPeriodError
from services.digests.model import LENGTHS, Digest, DigestChoice, Period, Window, next_due
from services.digests.models import DigestMailRow, DigestRow
from services.settings import Settings

log = structlog.get_logger(__name__)

# What is being settled just now carries a moment that has passed, and can't be seen yet.
_LAG: Final = timedelta(minutes=10)
_AT_ONCE: Final = 20


class DigestService:
    """Everything about digests but sending them."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def choice(self, subject: Subject) -> DigestChoice:
        """What a user chose. Raises `PermissionDeniedError` for whoever is none."""
        with self._database.reading() as session:
            user = myself(session, subject)
            return self._choice(user, session.get(DigestRow, user.id))

    def choose(self, subject: Subject, period: str | None) -> DigestChoice:
        """Have a digest from now on, `daily` or `weekly`; None: no more.

        Raises `NoMailError`, `UnknownPeriodError`, or `PermissionDeniedError` for whoever is no user.
        """
        wanted = None if period is None else _known(period)
        with self._database.unit_of_work() as uow:
            user = myself(uow.session, subject)
            row = uow.session.get(DigestRow, user.id, with_for_update=True)
            before = None if row is None else row.period
            if wanted != before:
                row = self._keep(uow.session, user, row, wanted)
                details = {"name": user.name, "from": before or "none", "to": wanted or "none"}
                note(uow.session, subject, "user.digest", "user", user.id, details=details)
            return self._choice(user, row)

    def queue_due(self) -> int:
        """Write the digests that are due into the outbox; how many mails that were. For the reconciler.

        Where there is nothing to tell no mail is written, and the period moves on all the same.
        """
        if self._settings.mail_server is None:
            return 0
        with self._database.reading() as session:
            due = repository.due_digests(session, utc_now(), _AT_ONCE)
        queued = 0
        for user_id in due:
            try:
                queued += self._queue(user_id)
            except Exception as error:  # noqa: BLE001 - the others get theirs, and this one is tried again
                log.warning("digest_failed", user=user_id, error=f"{type(error).__name__}: {error}")
        return queued

    def _queue(self, user_id: str) -> bool:
        now = utc_now()
        # What takes long is read beforehand: on SQLite, nobody else could write meanwhile.
        with self._database.reading() as session:
            row = session.get(DigestRow, user_id)
            if row is None or row.due_at > now:
                return False
            period = _known(row.period)
            until = max(row.told_until, now - _LAG)
            digest = self._digest(session, row, period, Window(row.told_until, until, until + LENGTHS[period]))
        with self._database.unit_of_work() as uow:
            due_at = next_due(row.due_at, period, now)
            if not repository.move_on(uow.session, row, told_until=until, due_at=due_at):
                return False
            if digest is None:
                return False
            uow.session.add(DigestMailRow(user_id=user_id, content=digest.model_dump(mode="json"), due_at=now))
        return True

    def _digest(self, session: Session, row: DigestRow, period: Period, window: Window) -> Digest | None:
        user = repository.receiver(session, row.user_id)
        if user is None:
            return None
        told, further = repository.news(session, subject_of_user(user), window)
        if not told:
            return None
        return Digest(
            period=period,
            since=window.since,
            until=window.until,
            sections=tuple(section(one, self._settings) for one in told),
            further=further,
        )

    def _keep(self, session: Session, user: UserRow, row: DigestRow | None, wanted: Period | None) -> DigestRow | None:
        if wanted is None:
            if row is not None:
                session.delete(row)
            return None
        if self._settings.mail_server is None:
            raise NoMailError("this server sends no mail: whoever runs it has set no mail server")
        if user.email is None:
            raise NoMailError("your account has no e-mail address to send it to")
        if row is None:
            now = utc_now()
            row = DigestRow(user_id=user.id, period=wanted, told_until=now, due_at=now + LENGTHS[wanted])
            session.add(row)
        else:
            row.period, row.due_at = wanted, row.told_until + LENGTHS[wanted]
        session.flush()
        return row

    def _choice(self, user: UserRow, row: DigestRow | None) -> DigestChoice:
        return DigestChoice(
            period=None if row is None else _known(row.period),
            next_at=None if row is None else row.due_at,
            address=user.email,
            mail_is_sent=self._settings.mail_server is not None,
        )


def _known(period: str) -> Period:
    for known in LENGTHS:
        if period == known:
            return known
    raise UnknownPeriodError(f"a digest comes {' or '.join(LENGTHS)}, not {period[:20]!r}", period=period[:20])
