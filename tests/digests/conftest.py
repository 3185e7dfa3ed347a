"""People with projects who want a digest, and a mail server that takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from services.database import Database
from services.database.base import utc_now
from services.digests.model import Digest
from services.digests.models import DigestMailRow, DigestRow
from services.digests.sending import send_due
from services.digests.service import DigestService
from services.settings import Settings
from tests.servers.mail import MailServer
from tests.team_rows import Rows, days_ago


@pytest.fixture(scope="session")
def running_mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    server = MailServer(tmp_path_factory.mktemp("mail"))
    yield server
    server.close()


@pytest.fixture
def mail_server(running_mail_server: MailServer) -> MailServer:
    running_mail_server.manners = type(running_mail_server.manners)()
    running_mail_server.taken.clear()
    running_mail_server.commands.clear()
    running_mail_server.heard.clear()
    return running_mail_server


@pytest.fixture
def settings(service_settings: Settings, mail_server: MailServer) -> Settings:
    return service_settings.model_copy(
        update={
            "smtp_url": mail_server.url(),
            "mail_from": "gradproof@team.example",
            "public_url": "https://gradproof.example",
        }
    )


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


@dataclass
class Office:
    """A team with a digest service. Periods pass when a test says so."""

    database: Database
    settings: Settings
    rows: Rows

    @property
    def digests(self) -> DigestService:
        return DigestService(self.database, self.settings)

    def member(self, name: str, role: str = "viewer", *, period: str | None = "daily", **columns: object) -> str:
        """Somebody who may read all projects of the default organisation, and wants a digest."""
        user = self.rows.user(name, role, **{"email": f"{name}@team.example", **columns})
        if period is not None:
            self.choose(user, period)
        return user

    def choose(self, user: str, period: str | None) -> None:
        self.digests.choose(self.rows.subject(user), period)

    def pass_time(self, user: str, *, since: datetime | None = None) -> None:
        """Make a digest due that tells of the last day."""
        with self.database.unit_of_work() as uow:
            uow.session.execute(
                update(DigestRow)
                .where(DigestRow.user_id == user)
                .values(told_until=since or days_ago(1), due_at=utc_now() - timedelta(seconds=1))
            )

    def queue(self, user: str) -> int:
        self.pass_time(user)
        return self.digests.queue_due()

    def row(self, user: str) -> DigestRow:
        with self.database.reading() as session:
            return session.get_one(DigestRow, user)

    def mails(self) -> list[DigestMailRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(DigestMailRow).order_by(DigestMailRow.id)))

    def mail(self) -> DigestMailRow:
        (only,) = self.mails()
        return only

    def told(self) -> str:
        """What the one mail in the outbox tells."""
        return "\n\n".join(section.text for section in Digest.model_validate(self.mail().content).sections)

    def make_due(self) -> None:
        """Let the wait of every mail that is not over end."""
        with self.database.unit_of_work() as uow:
            uow.session.execute(
                update(DigestMailRow)
                .where(DigestMailRow.due_at.is_not(None))
                .values(due_at=utc_now() - timedelta(seconds=1))
            )

    def send(self) -> int:
        return send_due(self.database, self.settings)


@pytest.fixture
def office(database: Database, settings: Settings, rows: Rows) -> Office:
    return Office(database, settings, rows)


@pytest.fixture
def authority(mail_server: MailServer) -> Path:
    return mail_server.authority
