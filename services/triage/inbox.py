"""Looking at the findings of projects: the inbox, one finding with its history, counts, how precise rules are.

Changes nothing: decisions are `services.triage.service`'s. This module must not know HTTP.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.database import Database
from services.triage import repository
from services.triage.errors import FindingNotFoundError
from services.triage.model import (
    Facets,
    FindingFilter,
    FindingPage,
    History,
    ProjectFinding,
    RulePrecision,
    Standing,
)
from services.triage.projects import project_called

_ANY: Final = FindingFilter()


class Inbox:
    """What can be asked about the findings of projects; `project` is an id or a name.

    Each method that names a project raises `ProjectNotFoundError` if the subject may not read it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def findings(
        self,
        subject: Subject,
        project: str | None,
        wanted: FindingFilter = _ANY,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> FindingPage:
        """Findings of a project, or of all that the subject may read, the gravest first and of those the newest.

        Raises `CursorError`.
        """
        with self._database.reading() as session:
            scope = _scope(session, subject, project)
            return repository.page_of_findings(session, scope, wanted, limit=limit, cursor=cursor)

    def facets(self, subject: Subject, project: str | None, wanted: FindingFilter = _ANY) -> Facets:
        """How many findings there are by each value of each filter, the other filters being in force."""
        with self._database.reading() as session:
            return repository.facets(session, _scope(session, subject, project), wanted)

    def finding(self, subject: Subject, project: str, fingerprint: str) -> ProjectFinding:
        """One finding of a project. Raises `FindingNotFoundError`."""
        with self._database.reading() as session:
            return self._found(session, project_called(session, subject, project).id, fingerprint)

    def history(
        self, subject: Subject, project: str, fingerprint: str, *, limit: int = 50, cursor: str | None = None
    ) -> History:
        """What happened to a finding, the newest first. Raises `FindingNotFoundError`, `CursorError`."""
        with self._database.reading() as session:
            found = self._found(session, project_called(session, subject, project).id, fingerprint)
            return repository.history(session, found.id, limit=limit, cursor=cursor)

    def precision(self, subject: Subject, project: str | None = None) -> tuple[RulePrecision, ...]:
        """By rule what became of its findings, in one project or in all that the subject may read."""
        with self._database.reading() as session:
            project_id = None if project is None else project_called(session, subject, project).id
            return repository.rule_precision(session, subject, project_id)

    def standings(self, subject: Subject, project_ids: Collection[str]) -> dict[str, Standing]:
        """By project, of at most a hundred, what is still to be decided about on its main line."""
        with self._database.reading() as session:
            readable = repository.readable_of(session, subject, project_ids)
            return repository.standings(session, readable)

    @staticmethod
    def _found(session: Session, project_id: str, fingerprint: str) -> ProjectFinding:
        found = repository.find_finding(session, project_id, fingerprint)
        if found is None:
            raise FindingNotFoundError(f"the project has no finding {fingerprint[:60]!r}", fingerprint=fingerprint[:60])
        return found


def _scope(session: Session, subject: Subject, project: str | None) -> ColumnElement[bool]:
    if project is None:
        return repository.of_readable_projects(session, subject)
    return repository.of_project(project_called(session, subject, project).id)
