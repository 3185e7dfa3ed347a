"""The use cases around a project: make, look, list, change, archive.

Each is one transaction. This module must not know what is found in a project.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from services.accounts import organisation_repository as organisations
from services.accounts.access import Permission, Subject
from services.accounts.audit import note
from services.accounts.errors import OrganisationNotFoundError
from services.accounts.models import DEFAULT_ORGANISATION
from services.database import Database
from services.database.base import utc_now
from services.projects import repository
from services.projects.errors import ProjectExistsError, ProjectNameError
from services.projects.filing import named_project, place_of_new
from services.projects.models import ProjectRow
from services.projects.settings import ProjectSettings, read_project_settings
from services.settings import Settings
from services.snapshots.urls import parse_git_url

PAGE_LIMIT: Final = 100
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}"
_BRANCH: Final = re.compile(r"[^\s\x00-\x1f\x7f~^:?*\[\\]{1,255}")


@dataclass(frozen=True, slots=True)
class ProjectView:
    """A project as it stands. `permissions` are those of whoever asked."""

    id: str
    name: str
    organisation: str
    organisation_id: str
    repository_url: str | None
    default_branch: str | None
    settings: ProjectSettings
    baseline_id: str | None
    created_at: datetime
    archived_at: datetime | None
    permissions: frozenset[Permission]


@dataclass(frozen=True, slots=True)
class ProjectPage:
    """Some projects in the order of their names; `next_cursor` asks for the next ones."""

    items: tuple[ProjectView, ...]
    next_cursor: str | None


class Changes(TypedDict, total=False):
    """What to change of a project; what is not named stays."""

    name: str
    repository_url: str | None
    default_branch: str | None
    settings: ProjectSettings | Mapping[str, Any]
    archived: bool


class ProjectService:
    """Everything about projects themselves."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def create(
        self, subject: Subject, name: str, *, repository_url: str | None = None, default_branch: str | None = None
    ) -> ProjectView:
        """Make a project: `organisation/name`, or a bare name in the default or one's only organisation.

        Raises `ProjectNameError`, `ProjectNotFoundError` where `subject` may not make any, `ProjectExistsError`,
        `GitUrlError`.
        """
        _check_name(name)
        url = self._checked_url(repository_url)
        branch = _checked_branch(default_branch)
        with self._database.unit_of_work() as uow:
            organisation_id, full_name = place_of_new(uow.session, subject, name, Permission.CONFIGURE)
            if repository.project_exists(uow.session, full_name):
                raise _taken(full_name)
            row = ProjectRow(
                name=full_name, organisation_id=organisation_id, repository_url=url, default_branch=branch, settings={}
            )
            uow.session.add(row)
            _flush(uow.session, full_name)
            note(
                uow.session,
                subject,
                "project.create",
                "project",
                row.id,
                project_id=row.id,
                details={"name": full_name},
            )
            return _view(uow.session, subject, row)

    def get(self, subject: Subject, project: str) -> ProjectView:
        """The project with this id or name. Raises `ProjectNotFoundError`."""
        with self._database.reading() as session:
            return _view(session, subject, named_project(session, subject, project))

    def of_ids(self, subject: Subject, project_ids: Collection[str]) -> dict[str, ProjectView]:
        """Those of these projects that `subject` may read, by their ids, in a few queries."""
        with self._database.reading() as session:
            views = _views(session, subject, repository.readable_of(session, subject, project_ids))
            return {view.id: view for view in views}

    def list(
        self,
        subject: Subject,
        *,
        cursor: str | None = None,
        limit: int = 50,
        organisation: str | None = None,
        archived: bool = False,
        text: str | None = None,
    ) -> ProjectPage:
        """Projects that `subject` may read, in the order of their names; `cursor` is that of the page before.

        `text` is looked for in their names.

        Raises `OrganisationNotFoundError`.
        """
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            organisation_id = None
            if organisation is not None:
                found = organisations.find_organisation(session, subject, organisation, Permission.READ)
                if found is None:
                    raise OrganisationNotFoundError(f"there is no organisation {organisation[:64]!r}")
                organisation_id = found.id
            rows = repository.readable_after(
                session,
                subject,
                cursor or "",
                limit=limit + 1,
                organisation_id=organisation_id,
                archived=archived,
                text=text,
            )
            items = _views(session, subject, rows[:limit])
            return ProjectPage(items, items[-1].name if len(rows) > limit else None)

    def update(self, subject: Subject, project: str, **changes: Unpack[Changes]) -> ProjectView:
        """Change a project; for maintainers.

        Raises `ProjectNotFoundError`, `PermissionDeniedError`, `ProjectNameError`, `ProjectExistsError`, `GitUrlError`,
        `InvalidProjectSettingsError`.
        """
        with self._database.unit_of_work() as uow:
            row = named_project(uow.session, subject, project, Permission.CONFIGURE)
            before = _plain(row)
            if "name" in changes:
                self._rename(uow.session, row, changes["name"])
            if "repository_url" in changes:
                row.repository_url = self._checked_url(changes["repository_url"])
            if "default_branch" in changes:
                row.default_branch = _checked_branch(changes["default_branch"])
            if "settings" in changes:
                given = changes["settings"]
                settings = given if isinstance(given, ProjectSettings) else read_project_settings(given)
                row.settings = settings.model_dump(mode="json", exclude_defaults=True)
            if "archived" in changes:
                row.archived_at = (row.archived_at or utc_now()) if changes["archived"] else None
            _flush(uow.session, row.name)
            after = _plain(row)
            changed = {key: {"from": before[key], "to": after[key]} for key in after if after[key] != before[key]}
            if changed:
                note(uow.session, subject, "project.change", "project", row.id, project_id=row.id, details=changed)
            return _view(uow.session, subject, row)

    def _rename(self, session: Session, row: ProjectRow, name: str) -> None:
        """Within the organisation: the part before the stroke stays, and may be left out."""
        _check_name(name)
        if row.organisation_id != DEFAULT_ORGANISATION:
            slug = repository.slugs_of(session, [row.organisation_id])[row.organisation_id]
            name = f"{slug}/{name.removeprefix(f'{slug}/')}"
        elif "/" in name and organisations.organisation_exists(session, name.partition("/")[0]):
            raise ProjectNameError("a project stays in its organisation", name=name)
        if name != row.name and repository.project_exists(session, name):
            raise _taken(name)
        row.name = name

    def _checked_url(self, url: str | None) -> str | None:
        return None if url is None else str(parse_git_url(url, self._settings))


def project_settings(row: ProjectRow) -> ProjectSettings:
    """What a project has set. Raises `InvalidProjectSettingsError` for what an older or newer Gradproof wrote."""
    return read_project_settings(row.settings)


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name) or "//" in name or name.endswith("/") or name.count("/") > 1:
        raise ProjectNameError(
            "a name has up to 100 letters, digits, '.', '_' or '-' and begins with a letter or digit;"
            " `organisation/name` says whose it is",
            name=name[:120],
        )


def _checked_branch(branch: str | None) -> str | None:
    if branch is not None and not _BRANCH.fullmatch(branch):
        raise ProjectNameError("this is no name of a branch", field="default_branch")
    return branch


def _flush(session: Session, name: str) -> None:
    """Somebody else may have taken the name since it was looked for."""
    try:
        session.flush()
    except IntegrityError as error:
        raise _taken(name) from error


def _taken(name: str) -> ProjectExistsError:
    return ProjectExistsError(f"there is a project {name!r} already", project=name)


def _plain(row: ProjectRow) -> dict[str, object]:
    """What can be changed, as the audit log keeps it."""
    return {
        "name": row.name,
        "repository_url": row.repository_url,
        "default_branch": row.default_branch,
        "settings": row.settings,
        "archived": row.archived_at is not None,
    }


def _view(session: Session, subject: Subject, row: ProjectRow) -> ProjectView:
    return _views(session, subject, [row])[0]


def _views(session: Session, subject: Subject, rows: Sequence[ProjectRow]) -> tuple[ProjectView, ...]:
    permissions = repository.permissions_in(session, subject, [row.id for row in rows])
    slugs = repository.slugs_of(session, {row.organisation_id for row in rows})
    return tuple(
        ProjectView(
            id=row.id,
            name=row.name,
            organisation=slugs[row.organisation_id],
            organisation_id=row.organisation_id,
            repository_url=row.repository_url,
            default_branch=row.default_branch,
            settings=project_settings(row),
            baseline_id=row.baseline_id,
            created_at=row.created_at,
            archived_at=row.archived_at,
            permissions=permissions[row.id],
        )
        for row in rows
    )
