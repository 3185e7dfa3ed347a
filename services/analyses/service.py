"""The use cases around an analysis: submit, look, list, cancel, run again, report.

Each is one transaction. This module must not know HTTP, nor how anything is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject
from services.accounts.errors import PermissionDeniedError
from services.analyses import repository
from services.analyses.errors import (
    AnalysisEndedError,
    AnalysisNotFoundError,
    IdempotencyConflictError,
    ReportUnavailableError,
)
from services.analyses.model import (
    AnalysisOptions,
    AnalysisView,
    GitSource,
    Page,
    ReportParts,
    Stage,
    Submitted,
)
from services.analyses.models import OPEN_STATUSES, AnalysisRow, AnalysisStatus
from services.analyses.occasion import NO_OCCASION, Occasion
from services.analyses.planning import plan_info
from services.analyses.progress import progress_of
from services.analyses.purposes import purpose_of_rerun, purpose_of_submission
from services.analyses.queueing import checks_of, static_job
from services.analyses.rows import gate_of, imports_of, info_of, origin_of, source_of, tool_of
from services.analyses.settlement import end_analysis, policy_of
from services.checks.repository import load_targets
from services.database import Database, UnitOfWork
from services.database.base import utc_now
from services.findings.model import TargetResult
from services.findings.repository import load_findings, load_suppressions
from services.gates import evaluate
from services.jobs import repository as jobs
from services.jobs.model import CONTROL_QUEUE, CPU_QUEUE
from services.jobs.models import JobKind, JobRow, JobState
from services.limits import require_room
from services.projects.errors import ProjectNotFoundError
from services.projects.filing import named_project, project_for_submission, require_open
from services.projects.repository import project_names
from services.reports.build import build_report
from services.reports.document import (
    ExampleInfo,
    PlanInfo,
    Report,
    SnapshotInfo,
)
from services.settings import Settings
from services.snapshots.model import Snapshot
from services.snapshots.repository import find_snapshot
from services.snapshots.urls import parse_git_url, resolve

PAGE_LIMIT = 100


class _KeyTakenError(Exception):
    """Another request with the same idempotency key committed first: roll back and answer with its analysis."""


class AnalysisService:
    """Everything that can be asked about analyses."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    # ------------------------------------------------------------------------------------------ submitting

    def submit(
        self,
        subject: Subject,
        source: Snapshot | GitSource,
        options: AnalysisOptions | None = None,
        *,
        project: str | None = None,
        base: str | None = None,
        idempotency_key: str | None = None,
        scope: str = "",
        occasion: Occasion = NO_OCCASION,
        followed_by: int = 0,
    ) -> Submitted:
        """Queue an analysis and ring the doorbell.

        A `Snapshot` is in the store already. A `GitSource` is fetched by a job; its URL is judged here first, and again
        when it is fetched. `base` is the id of the analysis to compare with. `idempotency_key` is unique within `scope`
        (the id of the token): the same submission with the same key gives the same analysis. `followed_by` are the
        analyses that the caller submits next and that need room as well: else the base of a refused one would be run.

        `project` is made if it is new and `subject` may. Raises `AnalysisNotFoundError` for a base that `subject` can't
        see, `ProjectNotFoundError`, `PermissionDeniedError` or `ProjectArchivedError` for such a project, `GitUrlError`
        for a URL that may not be fetched, `IdempotencyConflictError` if the key came with another submission before,
        `LimitReachedError` if there is no room.
        """
        options = options or AnalysisOptions()
        if isinstance(source, GitSource):
            url = parse_git_url(source.url, self._settings)
            if url.is_address:  # it can be judged without asking a name server; names are when they are fetched
                resolve(url, self._settings)
            source = GitSource(str(url), source.ref)
        digest = _digest(source, options, project, base)
        try:
            with self._database.unit_of_work() as uow:
                if idempotency_key is not None:
                    known = self._submitted_before(uow.session, scope, idempotency_key, digest)
                    if known is not None:
                        return known
                if base is not None:
                    self._found(uow.session, subject, base)
                project_id = project_for_submission(uow.session, subject, project)
                row = AnalysisRow(
                    base_id=base,
                    project_id=project_id,
                    options=options.model_dump(mode="json"),
                    purpose=occasion.purpose or purpose_of_submission(uow.session, project_id, source, base),
                    branch=occasion.branch,
                    pull_request_id=occasion.pull_request_id,
                )
                require_room(uow.session, self._settings, subject, project_id, analyses=1 + followed_by)
                analysis_id = self._create(uow, subject, row, source)
                if idempotency_key is not None:
                    _take_key(uow.session, scope, idempotency_key, digest, analysis_id)
                return Submitted(analysis_id, created=True)
        except _KeyTakenError:
            assert idempotency_key is not None
            with self._database.reading() as session:
                winner = self._submitted_before(session, scope, idempotency_key, digest)
                assert winner is not None
                return winner

    def rerun(self, subject: Subject, analysis_id: str) -> Submitted:
        """A new analysis of the same source with the same options; a git source that was never fetched is fetched.

        Nothing is reused: who asks for it wants to see it run. One of the main line that a newer one has overtaken
        decides nothing in the project. Raises `AnalysisNotFoundError`, `PermissionDeniedError`, or
        `ProjectArchivedError`.
        """
        with self._database.unit_of_work() as uow:
            old = self._found(uow.session, subject, analysis_id, Permission.SUBMIT)
            require_open(uow.session, old.project_id)
            source: Snapshot | GitSource
            if old.snapshot_digest is not None:
                snapshot = find_snapshot(uow.session, old.snapshot_digest)
                assert snapshot is not None
                source = Snapshot(snapshot.digest, snapshot.files, snapshot.lines, origin_of(old))
            else:
                assert old.source_url is not None
                source = GitSource(old.source_url, old.source_ref)
            options = AnalysisOptions.model_validate(old.options).model_copy(update={"reuse": False})
            row = AnalysisRow(
                base_id=old.base_id,
                project_id=old.project_id,
                options=options.model_dump(mode="json"),
                purpose=purpose_of_rerun(uow.session, old),
                branch=old.branch,
                pull_request_id=old.pull_request_id,
            )
            require_room(uow.session, self._settings, subject, row.project_id)
            return Submitted(self._create(uow, subject, row, source), created=True)

    def cancel(self, subject: Subject, analysis_id: str) -> AnalysisView:
        """Stop an analysis: open jobs end, workers notice at their next heartbeat. Cancelling twice is harmless.

        Raises `AnalysisNotFoundError`, `PermissionDeniedError`, or `AnalysisEndedError` if it has ended in another way.
        """
        with self._database.unit_of_work() as uow:
            self._found(uow.session, subject, analysis_id, Permission.SUBMIT)
            row = jobs.lock_analysis(uow.session, analysis_id)
            assert row is not None
            if row.status in OPEN_STATUSES:
                jobs.cancel_open(uow.session, analysis_id, JobState.CANCELLED, "the analysis was cancelled")
                end_analysis(uow.session, row, AnalysisStatus.CANCELLED, "cancelled on request")
            elif row.status != AnalysisStatus.CANCELLED:
                raise AnalysisEndedError(f"analysis {analysis_id} is {row.status} and can't be cancelled")
            return _view(uow.session, row)

    # ------------------------------------------------------------------------------------------ looking

    def get(self, subject: Subject, analysis_id: str) -> AnalysisView:
        """An analysis as it stands. Raises `AnalysisNotFoundError`."""
        with self._database.reading() as session:
            return _view(session, self._found(session, subject, analysis_id))

    def list(
        self,
        subject: Subject,
        *,
        limit: int = 20,
        cursor: str | None = None,
        project: str | None = None,
        statuses: Collection[str] = (),
    ) -> Page:
        """Analyses that `subject` may see, the newest first; `cursor` is that of the page before.

        At most `PAGE_LIMIT` at a time.
        """
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            project_id = None
            if project is not None:
                try:
                    project_id = named_project(session, subject, project).id
                except ProjectNotFoundError:
                    return Page((), None)
            rows = repository.newest(
                session, subject, limit=limit + 1, before=cursor, project_id=project_id, statuses=statuses
            )
            items = _views(session, rows[:limit])
            return Page(items, items[-1].id if len(rows) > limit else None)

    def parts(self, subject: Subject, analysis_id: str) -> ReportParts:
        """Everything the analysis has, settled or not yet.

        Raises `AnalysisNotFoundError`, or `ReportUnavailableError` while (or because) its source was not fetched.
        """
        with self._database.reading() as session:
            row = self._found(session, subject, analysis_id)
            snapshot = find_snapshot(session, row.snapshot_digest) if row.snapshot_digest else None
            if snapshot is None:
                reason = row.reason or "its source is not fetched yet"
                raise ReportUnavailableError(f"analysis {analysis_id} has no report: {reason}", status=row.status)
            findings = load_findings(session, row.id)
            targets = load_targets(session, row.id)
            return ReportParts(
                tool=tool_of(row),
                analysis=info_of(row),
                snapshot=SnapshotInfo(
                    digest=snapshot.digest, source=source_of(row), files=snapshot.files, lines=snapshot.lines
                ),
                gate=gate_of(row)
                or evaluate(
                    findings,
                    targets,
                    policy_of(session, row),
                    status=row.status,  # type: ignore[arg-type]
                    status_reason=row.reason,
                ),
                findings=findings,
                suppressed=load_suppressions(session, row.id),
                targets=targets,
                examples=tuple(ExampleInfo.model_validate(example) for example in row.examples),
                imports=imports_of(row),
                plan=self._plan(row, targets),
            )

    def report(self, subject: Subject, analysis_id: str) -> Report:
        """The report document. Raises as `parts` does."""
        parts = self.parts(subject, analysis_id)
        return build_report(
            tool=parts.tool,
            analysis=parts.analysis,
            snapshot=parts.snapshot,
            gate=parts.gate,
            findings=parts.findings,
            suppressed=parts.suppressed,
            targets=parts.targets,
            examples=parts.examples,
            imports=parts.imports,
            plan=parts.plan,
            public_url=self._settings.public_url,
        )

    # ------------------------------------------------------------------------------------------ parts

    def _plan(self, row: AnalysisRow, targets: Sequence[TargetResult]) -> PlanInfo | None:
        if row.static_finished_at is None or AnalysisOptions.model_validate(row.options).static_only:
            return None
        return plan_info(
            targets,
            budget_s=self._settings.analysis_budget.total_seconds(),
            checks=checks_of(row),
            examples=row.examples_reason,
        )

    def _create(
        self,
        uow: UnitOfWork,
        subject: Subject,
        row: AnalysisRow,
        source: Snapshot | GitSource,
    ) -> str:
        session = uow.session
        row.submitted_by = subject.owner or None
        row.submitted_by_name = subject.name
        if isinstance(source, Snapshot):
            row.source_kind, row.source_url = source.source.kind, source.source.url
            repository.note_snapshot(session, row, source)
        else:
            row.source_kind, row.source_url, row.source_ref = "git", source.url, source.ref
        session.add(row)
        session.flush()
        if isinstance(source, Snapshot):
            session.add(static_job(row.id, self._settings))
            uow.ring(CPU_QUEUE)
        else:
            session.add(_ingest_job(row.id, self._settings))
            uow.ring(CONTROL_QUEUE)
        session.flush()
        return row.id

    def _submitted_before(self, session: Session, scope: str, key: str, digest: str) -> Submitted | None:
        known = repository.find_key(session, scope, key)
        if known is None:
            return None
        if known.body_digest != digest:
            raise IdempotencyConflictError(
                f"the Idempotency-Key {key!r} was used for another submission before", analysis=known.analysis_id
            )
        return Submitted(known.analysis_id, created=False)

    @staticmethod
    def _found(
        session: Session, subject: Subject, analysis_id: str, permission: Permission = Permission.READ
    ) -> AnalysisRow:
        row = repository.find_visible(session, subject, analysis_id)
        if row is None:
            raise AnalysisNotFoundError(f"there is no analysis {analysis_id!r}", id=analysis_id)
        if (
            permission is not Permission.READ
            and repository.find_visible(session, subject, analysis_id, permission) is None
        ):
            raise PermissionDeniedError(
                f"this needs the permission {permission.value!r} in the project", permission=permission.value
            )
        return row


def _take_key(session: Session, scope: str, key: str, digest: str, analysis_id: str) -> None:
    if not repository.store_key(session, scope=scope, key=key, body_digest=digest, analysis_id=analysis_id):
        raise _KeyTakenError


def _ingest_job(analysis_id: str, settings: Settings) -> JobRow:
    return JobRow(
        analysis_id=analysis_id,
        kind=JobKind.INGEST,
        queue=CONTROL_QUEUE,
        idempotency_key=f"{analysis_id}:ingest",
        max_attempts=settings.max_attempts,
        rung_at=utc_now(),
    )


def _digest(source: Snapshot | GitSource, options: AnalysisOptions, project: str | None, base: str | None) -> str:
    """What makes two submissions the same: the content, where it came from, and everything that was chosen."""
    what: object = (
        [source.digest, source.source.kind, source.source.url, source.source.commit]
        if isinstance(source, Snapshot)
        else [source.url, source.ref]
    )
    body = json.dumps([what, options.model_dump(mode="json"), project, base], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()


def _view(session: Session, row: AnalysisRow) -> AnalysisView:
    return _views(session, [row])[0]


def _views(session: Session, rows: Sequence[AnalysisRow]) -> tuple[AnalysisView, ...]:
    progress = progress_of(session, rows)
    names = project_names(session, {row.project_id for row in rows if row.project_id is not None})
    return tuple(_shown(row, names, progress[row.id]) for row in rows)


def _shown(row: AnalysisRow, names: Mapping[str, str], progress: tuple[Stage, ...]) -> AnalysisView:
    return AnalysisView(
        id=row.id,
        status=row.status,
        reason=row.reason,
        project=None if row.project_id is None else names.get(row.project_id),
        base_id=row.base_id,
        snapshot_digest=row.snapshot_digest,
        source=source_of(row),
        options=AnalysisOptions.model_validate(row.options),
        created_at=row.created_at,
        started_at=row.started_at,
        static_finished_at=row.static_finished_at,
        finished_at=row.finished_at,
        progress=progress,
        gate=gate_of(row),
    )
