"""The outgoing hooks of a project: addresses that are told when an analysis has ended.

`queue_hooks` runs in the transaction that ends the analysis, so that nobody is told of what was rolled back, and
nothing is forgotten. Sending is `services.projects.hook_sending`. This module must not open a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject
from services.accounts.audit import note
from services.analyses.models import AnalysisRow, Purpose
from services.database import Database
from services.database.base import utc_now
from services.projects import hook_repository as repository
from services.projects.errors import HookLimitError, HookNotFoundError, HookUrlError
from services.projects.filing import named_project
from services.projects.hook_signing import hook_secret
from services.projects.models import HookDeliveryRow, HookRow
from services.settings import Settings
from services.snapshots.errors import GitError
from services.snapshots.urls import GitUrl, parse_git_url, resolve

FINISHED: Final = "analysis.finished"
MOST_HOOKS: Final = 20
PAGE_LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook, with the secret that its calls are signed with: for those who may configure the project."""

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call with all its attempts. `next_at` is null once it is over; then `delivered_at` or `reason` is set."""

    id: str
    event: str
    analysis_id: str | None
    created_at: datetime
    attempts: int
    status: int | None
    reason: str | None
    delivered_at: datetime | None
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Some calls, the newest first; `next_cursor` asks for older ones."""

    items: tuple[Delivery, ...]
    next_cursor: str | None


class HookService:
    """Looking after hooks; all of it is for maintainers of the project."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def list(self, subject: Subject, project: str) -> tuple[Hook, ...]:
        """The hooks of a project. Raises `ProjectNotFoundError`, `PermissionDeniedError`."""
        with self._database.reading() as session:
            row = named_project(session, subject, project, Permission.CONFIGURE)
            return tuple(self._hook(hook) for hook in repository.hooks_of(session, row.id, MOST_HOOKS))

    def create(self, subject: Subject, project: str, url: str) -> Hook:
        """Tell an address from now on. Raises as `list` does, `HookUrlError`, `HookLimitError`."""
        address = str(checked_url(url, self._settings))
        with self._database.unit_of_work() as uow:
            row = named_project(uow.session, subject, project, Permission.CONFIGURE)
            if repository.count_hooks(uow.session, row.id) >= MOST_HOOKS:
                raise HookLimitError(f"a project has at most {MOST_HOOKS} hooks", most=MOST_HOOKS)
            hook = HookRow(project_id=row.id, url=address, events=[FINISHED])
            uow.session.add(hook)
            uow.session.flush()
            note(uow.session, subject, "hook.create", "hook", hook.id, project_id=row.id, details={"url": address})
            return self._hook(hook)

    def remove(self, subject: Subject, project: str, hook_id: str) -> None:
        """Tell an address no more. Raises as `list` does, and `HookNotFoundError`."""
        with self._database.unit_of_work() as uow:
            hook = self._found(uow.session, subject, project, hook_id)
            note(
                uow.session,
                subject,
                "hook.remove",
                "hook",
                hook.id,
                project_id=hook.project_id,
                details={"url": hook.url},
            )
            uow.session.delete(hook)

    def set_disabled(self, subject: Subject, project: str, hook_id: str, *, disabled: bool) -> Hook:
        """Pause a hook, or take it up again. Raises as `remove` does."""
        with self._database.unit_of_work() as uow:
            hook = self._found(uow.session, subject, project, hook_id)
            if disabled is not (hook.disabled_at is not None):
                hook.disabled_at = utc_now() if disabled else None
                action = "hook.disable" if disabled else "hook.enable"
                details = {"url": hook.url}
                note(uow.session, subject, action, "hook", hook.id, project_id=hook.project_id, details=details)
            return self._hook(hook)

    def deliveries(
        self, subject: Subject, project: str, hook_id: str, *, cursor: str | None = None, limit: int = 50
    ) -> DeliveryPage:
        """What a hook was told, the newest first. Raises as `remove` does."""
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            hook = self._found(session, subject, project, hook_id)
            rows = repository.deliveries_of(session, hook.id, before=cursor, limit=limit + 1)
            items = tuple(_delivery(row) for row in rows[:limit])
            return DeliveryPage(items, items[-1].id if len(rows) > limit else None)

    def redeliver(self, subject: Subject, project: str, hook_id: str, delivery_id: str) -> Delivery:
        """Make a call again, from the first attempt on. Raises as `remove` does, also for a call it never made."""
        with self._database.unit_of_work() as uow:
            hook = self._found(uow.session, subject, project, hook_id)
            row = uow.session.get(HookDeliveryRow, delivery_id)
            if row is None or row.hook_id != hook.id:
                raise HookNotFoundError("this hook made no such call", delivery=delivery_id[:50])
            row.due_at, row.attempts, row.delivered_at, row.reason = utc_now(), 0, None, None
            note(uow.session, subject, "hook.repeat", "hook", hook.id, project_id=hook.project_id)
            return _delivery(row)

    def _found(self, session: Session, subject: Subject, project: str, hook_id: str) -> HookRow:
        row = named_project(session, subject, project, Permission.CONFIGURE)
        hook = repository.find_hook(session, row.id, hook_id)
        if hook is None:
            raise HookNotFoundError(f"there is no hook {hook_id[:50]!r} of this project", hook=hook_id[:50])
        return hook

    def _hook(self, row: HookRow) -> Hook:
        return Hook(
            id=row.id,
            url=row.url,
            events=tuple(row.events),
            secret=hook_secret(self._settings, row.id),
            created_at=row.created_at,
            disabled_at=row.disabled_at,
        )


def queue_hooks(session: Session, analysis: AnalysisRow) -> None:
    """Have the hooks of its project told that an analysis has ended; not of one that a change is only compared with."""
    if analysis.project_id is None or analysis.purpose == Purpose.BASE:
        return
    for hook in repository.hooks_of(session, analysis.project_id, MOST_HOOKS):
        if hook.disabled_at is None and FINISHED in hook.events:
            session.add(HookDeliveryRow(hook_id=hook.id, analysis_id=analysis.id, event=FINISHED, due_at=utc_now()))
    session.flush()


def checked_url(url: str, settings: Settings) -> GitUrl:
    """An address that may be told something, by the judge of git URLs: https, a public or trusted host, no user name.

    Which hosts may be cloned from (`git_hosts`) is another question. Raises `HookUrlError`.
    """
    if not url.partition("://")[2].partition("/")[2]:
        raise HookUrlError("the address needs a path behind the host", part="path")
    try:
        parsed = parse_git_url(url, anywhere(settings))
        if parsed.is_address:  # it can be judged without asking a name server; names are when they are called
            resolve(parsed, anywhere(settings))
    except GitError as error:
        raise HookUrlError(error.message, **error.details) from error
    return parsed


def anywhere(settings: Settings) -> Settings:
    """The settings by which addresses of hooks are judged."""
    return settings.model_copy(update={"git_hosts": ()})


def _delivery(row: HookDeliveryRow) -> Delivery:
    return Delivery(
        id=row.id,
        event=row.event,
        analysis_id=row.analysis_id,
        created_at=row.created_at,
        attempts=row.attempts,
        status=row.status,
        reason=row.reason,
        delivered_at=row.delivered_at,
        next_at=row.due_at,
    )
