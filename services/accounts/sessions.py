"""Sessions of browsers, kept here: the browser has 160 random bits, and of those only a keyed hash is stored.

A session ends twelve hours after it was last used, and after seven days in any case; at once when it is signed out,
when its user is disabled or changes the password, when its token is revoked. This module must not know cookies.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from services.accounts import user_repository as repository
from services.accounts.access import Subject
from services.accounts.audit import note
from services.accounts.models import ApiTokenRow, SessionRow, UserRow
from services.accounts.secret import secret_key
from services.accounts.service import subject_of_token
from services.accounts.users import subject_of_user
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings

IDLE: Final = timedelta(hours=12)
LONGEST: Final = timedelta(days=7)
# A write with every page would cost more than a session that ends five minutes early.
_RENEW_EVERY: Final = timedelta(minutes=5)
_RANDOM_BYTES: Final = 20
_LISTED: Final = 50
_AGENT: Final = 200


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session that is open. `form_key` is what its forms carry: known to its own pages only."""

    id: str
    subject: Subject
    form_key: str


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as its user sees it."""

    id: str
    agent: str
    created_at: datetime
    seen_at: datetime


class SessionService:
    """Everything about sessions."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._key = hmac.new(secret_key(settings), b"gradproof sessions 1", sha256).digest()

    def begin(self, subject: Subject, *, agent: str = "", how: str = "password") -> str:
        """Start a session for a user, or for the holder of a token; the text is for the browser's cookie."""
        text = secrets.token_urlsafe(_RANDOM_BYTES)
        now = utc_now()
        with self._database.unit_of_work() as uow:
            repository.forget_sessions(uow.session, now)
            row = SessionRow(
                digest=self._digest(text),
                user_id=subject.id if subject.kind == "user" else None,
                token_id=subject.id if subject.kind == "token" else None,
                agent=agent[:_AGENT],
                created_at=now,
                seen_at=now,
                expires_at=now + IDLE,
            )
            uow.session.add(row)
            uow.session.flush()
            note(uow.session, subject, "sign-in", "session", row.id, details={"how": how})
        return text

    def find(self, text: str) -> BrowserSession | None:
        """The session that a cookie names; None if there is none, or it is over. Notes that it was used."""
        digest = self._digest(text)
        now = utc_now()
        with self._database.reading() as session:
            row = repository.find_session(session, digest)
            if row is None or not hmac.compare_digest(row.digest, digest) or row.expires_at <= now:
                return None
            subject = _subject(session.get(UserRow, row.user_id) if row.user_id else None)
            if row.token_id:
                token = session.get(ApiTokenRow, row.token_id)
                subject = None if token is None else subject_of_token(session, token)
        if subject is None:
            return None
        if now - row.seen_at > _RENEW_EVERY:
            self._renew(row.id, now)
        return BrowserSession(row.id, subject, hmac.new(self._key, f"form\0{row.id}".encode(), sha256).hexdigest())

    def end(self, subject: Subject, session_id: str) -> None:
        """Sign out of one session of `subject`'s own; of one that is over or foreign, nothing happens."""
        with self._database.unit_of_work() as uow:
            row = uow.session.get(SessionRow, session_id)
            if row is not None and subject.id in (row.user_id, row.token_id):
                uow.session.delete(row)
                note(uow.session, subject, "sign-out", "session", session_id)

    def end_all(self, subject: Subject) -> None:
        """Sign out everywhere: every session of this user, or of this token."""
        with self._database.unit_of_work() as uow:
            if subject.kind == "user":
                repository.end_sessions(uow.session, user_id=subject.id)
            else:
                repository.end_sessions(uow.session, token_id=subject.id)
            note(uow.session, subject, "sign-out.everywhere", subject.kind, subject.id)

    def list(self, subject: Subject) -> tuple[SessionInfo, ...]:
        """The open sessions of a user, the last seen first."""
        if subject.user_id is None:
            return ()
        with self._database.reading() as session:
            rows = repository.sessions_of(session, subject.user_id, _LISTED)
            return tuple(SessionInfo(row.id, row.agent, row.created_at, row.seen_at) for row in rows)

    def _renew(self, session_id: str, now: datetime) -> None:
        with self._database.unit_of_work() as uow:
            row = uow.session.get(SessionRow, session_id)
            if row is not None:
                row.seen_at = now
                row.expires_at = min(now + IDLE, row.created_at + LONGEST)

    def _digest(self, text: str) -> str:
        return hmac.new(self._key, f"cookie\0{text}".encode("utf-8", "replace"), sha256).hexdigest()


def _subject(user: UserRow | None) -> Subject | None:
    return None if user is None or user.disabled_at is not None else subject_of_user(user)
