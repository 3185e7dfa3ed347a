"""The audit log: who did what, when, to which object. Rows are only ever added; the database refuses everything else.

`note` is called within the transaction of what it tells of, so that neither is there without the other. It must not be
given secrets: what is written here stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session

from services.accounts import audit_repository
from services.accounts.access import Permission, Subject
from services.accounts.audit_repository import ANYTHING, AuditFilter
from services.accounts.errors import PermissionDeniedError
from services.accounts.models import AuditEventRow
from services.database import Database

PAGE_LIMIT: Final = 200


def note(
    session: Session,
    subject: Subject,
    action: str,
    object_kind: str,
    object_id: str,
    *,
    organisation_id: str | None = None,
    project_id: str | None = None,
    details: Mapping[str, object] | None = None,
) -> None:
    """Write down that `subject` did something.

    `action` is a word with a dot (`member.change`). Of an event in a project, the organisation is looked up: its admins
    see what happens in its projects.
    """
    if project_id is not None and organisation_id is None:
        organisation_id = audit_repository.organisation_of(session, project_id)
    session.add(
        AuditEventRow(
            actor_kind=subject.kind,
            actor_id=subject.id,
            actor_name=subject.name,
            organisation_id=organisation_id,
            project_id=project_id,
            action=action,
            object_kind=object_kind,
            object_id=object_id,
            details=dict(details or {}),
        )
    )
    session.flush()


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the log. `project` is the name of the project, if it still has one."""

    id: str
    at: datetime
    actor_kind: str
    actor_id: str
    actor_name: str
    action: str
    object_kind: str
    object_id: str
    organisation_id: str | None
    project_id: str | None
    project: str | None
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some lines; `next_cursor` asks for older ones."""

    items: tuple[AuditEvent, ...]
    next_cursor: str | None


class AuditService:
    """Reading the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, subject: Subject, *, wanted: AuditFilter = ANYTHING, cursor: str | None = None, limit: int = 50
    ) -> AuditPage:
        """Lines that `subject` may see, the newest first: of projects that it may configure and of organisations that
        it administers; whoever administers the installation sees all.

        Raises `PermissionDeniedError` if it may see none at all, whatever happens.
        """
        limit = max(1, min(limit, PAGE_LIMIT))
        if Permission.CONFIGURE not in subject.permissions:
            raise PermissionDeniedError(
                "the audit log is for maintainers of projects and admins of organisations",
                permission=Permission.CONFIGURE.value,
            )
        with self._database.reading() as session:
            rows = audit_repository.newest(session, subject, wanted, before=cursor, limit=limit + 1)
            items = tuple(_event(row, name) for row, name in rows[:limit])
            return AuditPage(items, items[-1].id if len(rows) > limit else None)


def _event(row: AuditEventRow, project: str | None) -> AuditEvent:
    return AuditEvent(
        id=row.id,
        at=row.at,
        actor_kind=row.actor_kind,
        actor_id=row.actor_id,
        actor_name=row.actor_name,
        action=row.action,
        object_kind=row.object_kind,
        object_id=row.object_id,
        organisation_id=row.organisation_id,
        project_id=row.project_id,
        project=project,
        details=row.details,
    )
