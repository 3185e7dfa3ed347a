"""Hands the mails that are due to the operator's mail server, tried again with growing waits for a day.

The lease of a mail is its `due_at`: a process that dies between sending one and noting that costs a second copy, which
has the same `Message-ID`. Whom a mail is for is asked again before each attempt: it is not sent to who was disabled or
wants none any more, and what they may not read any more is left out. Nothing is sent in clear over a network unless the
operator said so.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from typing import Final
from urllib.parse import urlsplit

import structlog
from sqlalchemy.orm import Session

from services.accounts.users import subject_of_user
from services.database import Database
from services.database.base import utc_now
from services.digests import repository
from services.digests.composing import mail
from services.digests.model import Digest
from services.digests.models import DigestMailRow, DigestRow
from services.reports.untrusted import one_line, shorten
from services.settings import Settings
from services.settings.mail import MailServer

log = structlog.get_logger(__name__)

# After the first attempt: some 19 hours in all.
WAITS: Final = (
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(hours=10),
)
_TIMEOUT_S: Final = 20.0
_DEADLINE_S: Final = 90.0
_LEASE: Final = timedelta(minutes=10)
_AT_ONCE: Final = 20
_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class _Letter:
    """What is to be sent, read in one transaction and sent in none."""

    mail_id: str
    to: str
    message: EmailMessage


@dataclass(frozen=True, slots=True)
class _Outcome:
    """`reason` None: it was taken. `is_final`: asking again would change nothing."""

    status: int | None
    reason: str | None
    is_final: bool = False


class _UndeliverableError(Exception):
    """A mail that is over before it was sent."""


class _Connection(smtplib.SMTP):
    """One that knows its host before it is connected, so that it can be cut off from the first byte on."""

    _host: str  # what `starttls` compares the certificate with


class _TlsConnection(smtplib.SMTP_SSL):
    _host: str


def send_due(database: Database, settings: Settings) -> int:
    """Send the mails whose time has come; how many were tried. Never raises for what the other side does."""
    server = settings.mail_server
    if server is None:
        return 0
    for number in range(_AT_ONCE):
        taken = _take(database, settings)
        if not taken:
            return number
        letter = taken[0]
        if letter is not None:
            outcome = _send(letter, server, settings)
            with database.unit_of_work() as uow:
                _note(uow.session, letter.mail_id, outcome)
    return _AT_ONCE


def _take(database: Database, settings: Settings) -> tuple[_Letter | None, ...]:
    """The next mail, if there is one; None for one that is over without having been sent."""
    now = utc_now()
    with database.reading() as session:
        if not repository.due_mails(session, now, 1):
            return ()
    with database.unit_of_work() as uow:
        for row in repository.due_mails(uow.session, now, _AT_ONCE):
            if repository.take_mail(uow.session, row, now + _LEASE):
                uow.session.refresh(row)
                try:
                    return (_letter(uow.session, row, settings),)
                except _UndeliverableError as error:
                    row.due_at, row.reason = None, _reason(str(error))
                    return (None,)
    return ()


def _letter(session: Session, row: DigestMailRow, settings: Settings) -> _Letter:
    user = repository.receiver(session, row.user_id)
    if user is None or user.email is None:
        raise _UndeliverableError("its receiver is disabled or has no address any more")
    if session.get(DigestRow, row.user_id) is None:
        raise _UndeliverableError("its receiver wants no digest any more")
    digest = Digest.model_validate(row.content)
    readable = repository.readable_of(session, subject_of_user(user), [one.project_id for one in digest.sections])
    left = tuple(one for one in digest.sections if one.project_id in readable)
    if not left:
        raise _UndeliverableError("its receiver may not read any of its projects any more")
    try:
        message = mail(
            digest.model_copy(update={"sections": left}),
            mail_id=row.id,
            at=row.created_at,
            to=user.email,
            settings=settings,
        )
    except ValueError as error:
        raise _UndeliverableError(f"the address of its receiver {error}") from error
    return _Letter(row.id, user.email, message)


def _send(letter: _Letter, server: MailServer, settings: Settings) -> _Outcome:
    try:
        with _connected(server, settings) as connection:
            connection.send_message(letter.message, settings.mail_from, [letter.to])
    except smtplib.SMTPRecipientsRefused as error:
        status, answer = next(iter(error.recipients.values()))
        return _refused(status, answer, is_final=status >= 500)
    except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
        return _refused(error.smtp_code, error.smtp_error, is_final=error.smtp_code >= 500)
    except smtplib.SMTPResponseException as error:
        # Of the connection or of who we are, not of this mail: an operator may mend it.
        return _refused(error.smtp_code, error.smtp_error, is_final=False)
    except (smtplib.SMTPException, ssl.SSLError, OSError) as error:
        return _Outcome(None, _reason(f"{type(error).__name__}: {error}"))
    return _Outcome(250, None)


@contextmanager
def _connected(server: MailServer, settings: Settings) -> Iterator[smtplib.SMTP]:
    """A connection on which mail may be handed in, which ends by itself when all of it takes too long."""
    context = ssl.create_default_context(cafile=None if settings.smtp_ca_file is None else str(settings.smtp_ca_file))
    name = urlsplit(settings.public_url).hostname or "localhost"
    connection: _Connection | _TlsConnection
    if server.tls:
        connection = _TlsConnection(local_hostname=name, timeout=_TIMEOUT_S, context=context)
    else:
        connection = _Connection(local_hostname=name, timeout=_TIMEOUT_S)
    connection._host = server.host
    # A server that trickles its answers byte by byte never runs into the timeout of a single read.
    clock = threading.Timer(_DEADLINE_S, _cut, (connection,))
    clock.daemon = True
    clock.start()
    try:
        status, answer = connection.connect(server.host, server.port)
        if status != 220:
            raise smtplib.SMTPConnectError(status, answer)
        wanted = settings.smtp_starttls
        if not server.tls and (wanted == "always" or (wanted == "auto" and not server.is_here)):
            connection.starttls(context=context)
        if settings.smtp_user:
            connection.login(settings.smtp_user, settings.smtp_password.get_secret_value())
        yield connection
        # It was taken: whatever comes now is no failure of the mail.
        with suppress(smtplib.SMTPException, OSError):
            connection.quit()
    finally:
        clock.cancel()
        connection.close()


def _cut(connection: smtplib.SMTP) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            # That of the plain socket: the one of TLS would take away what another thread reads from.
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def _refused(status: int, answer: bytes | str, *, is_final: bool) -> _Outcome:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return _Outcome(status, _reason(f"answered {status} {text}"), is_final)


def _reason(text: str) -> str:
    return shorten(one_line(text), _REASON)


def _note(session: Session, mail_id: str, outcome: _Outcome) -> None:
    row = session.get(DigestMailRow, mail_id)
    if row is None:  # the user was removed meanwhile
        return
    row.status, row.reason = outcome.status, outcome.reason
    if outcome.reason is None:
        row.delivered_at, row.due_at = utc_now(), None
        return
    if outcome.is_final:
        row.due_at = None
    elif row.attempts > len(WAITS):
        row.due_at = None
        row.reason = f"given up after {row.attempts} attempts: {outcome.reason}"
    else:
        row.due_at = utc_now() + WAITS[row.attempts - 1]
    log.info("digest_not_taken", mail=mail_id, reason=row.reason)
