"""Rows as a team has them: people, projects, analyses, findings, pull requests, workers. Nothing is run.

A test says what matters to it and leaves the rest; moments are days before now, so that trends have something to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from services.accounts.access import Subject
from services.accounts.models import (
    DEFAULT_ORGANISATION,
    MembershipRow,
    OrganisationRow,
    ProjectMembershipRow,
    UserRow,
)
from services.accounts.users import subject_of_user
from services.analyses.models import AnalysisRow
from services.database import Database
from services.database.base import utc_now
from services.forges.models import (
    DeliveryRow,
    ForgeTaskRow,
    InstallationRow,
    PullRequestRow,
    RepositoryRow,
    ReviewThreadRow,
)
from services.jobs import repository as jobs
from services.jobs.models import JobRow
from services.projects.models import ProjectRow
from services.snapshots.repository import record_snapshot
from services.triage.models import ProjectFindingRow, TriageEventRow

_RANKS = {"error": 0, "warning": 1, "note": 2}
DIGEST = "sha256:" + "7" * 64


def days_ago(days: float) -> datetime:
    """A moment before now."""
    return utc_now() - timedelta(days=days)


def totals(*, error: int = 0, warning: int = 0, failing: int = 0) -> dict[str, object]:
    """The counts of an analysis, as its row keeps them."""
    open_ = {"error": error, "warning": warning}
    return {
        "findings": {"all": open_, "new": {}, "open": open_},
        "verdicts": {"confirmed": error},
        "checks": {"pass": 40, "fail": failing},
        "targets": {"found": 14, "run": 11, "not_run": {"needs data": 3}, "not_eligible": {}},
        "suppressed": 0,
    }


class Rows:
    """Puts rows in and returns their ids."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._number = 0

    def add(self, row: Any) -> str:
        """Any row that has an id."""
        with self.database.unit_of_work() as uow:
            uow.session.add(row)
            uow.session.flush()
            return str(getattr(row, "id", ""))

    def user(self, name: str, role: str | None = None, *, project: str | None = None, **columns: Any) -> str:
        """A person; with a role, a member of the default organisation, or of one project."""
        values = {"name": name, "display_name": name.capitalize(), **columns}
        user_id = self.add(UserRow(**values))
        if role is not None and project is not None:
            self.add(ProjectMembershipRow(project_id=project, user_id=user_id, role=role))
        elif role is not None:
            self.add(MembershipRow(organisation_id=DEFAULT_ORGANISATION, user_id=user_id, role=role))
        return user_id

    def subject(self, user: str) -> Subject:
        """A person, as the one who asks."""
        with self.database.reading() as session:
            return subject_of_user(session.get_one(UserRow, user))

    def organisation(self, slug: str) -> str:
        """An organisation without members."""
        return self.add(OrganisationRow(slug=slug, name=slug.capitalize()))

    def project(self, name: str, **columns: Any) -> str:
        """A project, of the default organisation if nothing else is said."""
        return self.add(ProjectRow(name=name, **columns))

    def analysis(self, project: str | None = None, *, passed: bool | None = True, **columns: Any) -> str:
        """An analysis that has ended; `passed` None: it is under way."""
        explanation = "1 new: GP101 at pkg/a.py:6"
        gate = {
            "passed": passed,
            "conditions": [{"name": "no new error", "passed": passed, "explanation": explanation}],
        }
        values: dict[str, Any] = {
            "project_id": project,
            "status": "running" if passed is None else "finished",
            "source_kind": "git",
            "source_url": "https://github.com/example/vision.git",
            "source_commit": f"{self._next():040x}",
            "branch": "main",
            "snapshot_digest": DIGEST,
            "options": {},
            "tool": {"version": "0.1", "torch": "2.13.0", "devices": ["cpu"]},
            "gate": None if passed is None else gate,
            "started_at": utc_now(),
            "static_finished_at": utc_now(),
            "finished_at": None if passed is None else utc_now(),
        }
        with self.database.unit_of_work() as uow:
            record_snapshot(uow.session, digest=DIGEST, files=3, lines=120)
        return self.add(AnalysisRow(**values | columns))

    def finding(self, project: str, **columns: Any) -> str:
        """A finding of a project, open and on its main line; returns its fingerprint."""
        number = self._next()
        values: dict[str, Any] = {
            "project_id": project,
            "fingerprint": f"{number:016x}",
            "rule": "GP101",
            "name": "unprotected-division",
            "severity": "error",
            "path": "pkg/a.py",
            "line": number,
            "symbol": "pkg.a.Norm.forward",
            "message": f"`x / x.norm()` divides by what can be zero ({number})",
            "verdict": "confirmed",
            "on_main": True,
        }
        values |= columns
        values["severity_rank"] = _RANKS[values["severity"]]
        self.add(ProjectFindingRow(**values))
        return str(values["fingerprint"])

    def event(self, finding_id: str, kind: str, **columns: Any) -> str:
        """Something that happened to a finding."""
        values = {"actor_kind": "system", "actor_id": "", "actor_name": "Gradproof", **columns}
        return self.add(TriageEventRow(finding_id=finding_id, kind=kind, **values))

    def repository(self, project: str, *, forge: str = "github", **columns: Any) -> str:
        """A repository at a forge, with an installation of its own; `columns` are those of the installation."""
        number = self._next()
        installation = self.add(
            InstallationRow(
                **{
                    "forge": forge,
                    "external_id": str(number),
                    "account": "example",
                    "organisation_id": DEFAULT_ORGANISATION,
                    **columns,
                }
            )
        )
        return self.add(
            RepositoryRow(
                forge=forge,
                external_id=str(number),
                full_name="example/vision",
                clone_url="https://github.com/example/vision.git",
                web_url=f"https://{forge}.com/example/vision",
                default_branch="main",
                installation_id=installation,
                project_id=project,
            )
        )

    def pull_request(self, repository: str, **columns: Any) -> str:
        """An open pull request of which nothing was analysed or written yet."""
        number = self._next()
        values: dict[str, Any] = {
            "repository_id": repository,
            "number": number,
            "title": f"Change {number}",
            "author": "ada",
            "base_ref": "main",
            "base_sha": "b" * 40,
            "head_ref": "topic",
            "head_sha": f"{number:040x}",
        }
        return self.add(PullRequestRow(**values | columns))

    def thread(self, pull_request: str, **columns: Any) -> str:
        """A comment of ours at a line."""
        values: dict[str, Any] = {
            "fingerprint": "f" * 16,
            "comment_id": str(self._next()),
            "path": "pkg/a.py",
            "line": 6,
            "head_sha": "c" * 40,
        }
        return self.add(ReviewThreadRow(pull_request_id=pull_request, **values | columns))

    def step(self, pull_request: str, *, event: str | None = None, **columns: Any) -> str:
        """A piece of work for a pull request, begun by a webhook if `event` names one."""
        number = self._next()
        delivery = None
        if event is not None:
            name, _, action = event.partition(" ")
            delivery = self.add(
                DeliveryRow(forge="github", delivery_id=f"delivery-{number}", event=name, action=action)
            )
        values: dict[str, Any] = {"kind": "publish", "key": f"key-{number}", "state": "done", **columns}
        return self.add(ForgeTaskRow(pull_request_id=pull_request, delivery_id=delivery, **values))

    def job(self, analysis: str, **columns: Any) -> str:
        """A job of an analysis that waits."""
        values: dict[str, Any] = {
            "kind": "probe",
            "queue": "cpu",
            "device_class": "cpu",
            "idempotency_key": f"job-{self._next()}",
            "max_attempts": 3,
        }
        return self.add(JobRow(analysis_id=analysis, **values | columns))

    def worker(self, name: str, queues: list[str], *, device: Mapping[str, str | None] | None = None) -> None:
        """A worker that has just reported."""
        row: dict[str, object] = {
            "id": name,
            "host": f"{name}.example",
            "pid": 4711,
            "version": "0.1",
            "queues": queues,
            "devices": ["cuda"] if device else [],
            "device": device,
            "running": 1 if device else 0,
            "started_at": days_ago(2),
        }
        with self.database.unit_of_work() as uow:
            jobs.report_worker(uow.session, row)

    def _next(self) -> int:
        self._number += 1
        return self._number
