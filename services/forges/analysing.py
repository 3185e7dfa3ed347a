"""Has the present head of a pull request analysed, compared with where it branched off.

The base is analysed once for all pull requests that branch off there; what is known of it is reused. Submissions carry
keys of their own, so that a task that is done twice makes no second analysis. Writes nothing at the forge: what it says
of the analysis is `publishing`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.analyses.model import AnalysisOptions, GitSource
from services.analyses.models import Purpose
from services.analyses.occasion import Occasion
from services.analyses.service import AnalysisService
from services.database import Database
from services.forges import repository, states
from services.forges.client import ForgeClient
from services.forges.connections import Forges
from services.forges.errors import ForgeNotFoundError
from services.forges.following import bot_settings, end_analyses, follow, queue_publish
from services.forges.subjects import forge_subject
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.forges.values import PullRequest
from services.problems import BadInputError, ConflictError
from services.settings import Settings


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a pull request is, as plain values: no transaction is open while the forge is asked."""

    pull_request_id: str
    number: int
    forge: str
    installation: str
    installation_id: str
    account: str
    repository_id: str
    repository: str
    full_name: str
    clone_url: str
    project_id: str
    out_of_reach: str | None


class Analysing:
    """What is done with tasks of the kind `analyse`."""

    def __init__(self, database: Database, settings: Settings, forges: Forges) -> None:
        self._database = database
        self._forges = forges
        self._tasks = ForgeTasks(database, settings)
        self._analyses = AnalysisService(database, settings)

    def analyse(self, claim: TaskClaim) -> str:
        """Do it; what came of it. Raises `ForgeError`, `LeaseLostError`, or what a submission raises."""
        where = self._where(claim)
        if where.out_of_reach is not None:
            return self._silent(claim, where, where.out_of_reach)
        with self._forges.client(where.forge, where.installation, where.repository) as client:
            seen = client.pull_request(where.full_name, where.number)
            moved_on = self._moved_on(claim, where, seen)
            if moved_on is not None:
                return moved_on
            merge_base = self._merge_base(client, where, seen)
        run = str(claim.details.get("run") or "")
        try:
            base = self._base(where, seen, merge_base)
            head = self._head(where, seen, base, run)
        except (BadInputError, ConflictError) as error:  # a host that is not fetched from, for one
            return self._silent(claim, where, error.message)
        with self._tasks.owning(claim) as uow:
            row = repository.lock_pull_request(uow.session, where.pull_request_id)
            if row is None or row.head_sha != seen.head_sha:
                return "a newer head is there"
            if row.analysis_id != head:
                row.analysis_id = head
                # Another run has a check of its own: annotations of the one before can't be taken back.
                row.check_id, row.check_state, row.check_digest, row.check_pages = None, "", "", 0
                uow.session.flush()
                end_analyses(uow, row, "superseded by a newer run", keep=head)
            row.base_analysis_id, row.merge_base_sha, row.due_at = base, merge_base, None
            row.silence = {part: reason for part, reason in row.silence.items() if part != states.ANALYSIS}
            uow.session.flush()
            around = repository.surroundings(uow.session, row.id)
            assert around is not None
            queue_publish(uow, around.repository, row)
        return f"analysis {head} of {seen.head_sha}"

    def _where(self, claim: TaskClaim) -> _Where:
        assert claim.pull_request_id is not None
        with self._database.reading() as session:
            around = repository.surroundings(session, claim.pull_request_id)
            assert around is not None
            return _Where(
                pull_request_id=around.pull_request.id,
                number=around.pull_request.number,
                forge=around.repository.forge,
                installation=around.installation.external_id,
                installation_id=around.installation.id,
                account=around.installation.account,
                repository_id=around.repository.id,
                repository=around.repository.external_id,
                full_name=around.repository.full_name,
                clone_url=around.repository.clone_url,
                project_id=around.project.id,
                out_of_reach=repository.out_of_reach(around),
            )

    def _moved_on(self, claim: TaskClaim, where: _Where, seen: PullRequest) -> str | None:
        """Why this task is not to go on: a newer head waits for further pushes, or nothing is to be analysed."""
        again = bool(claim.details.get("run"))
        with self._tasks.owning(claim) as uow:
            before = repository.lock_pull_request(uow.session, where.pull_request_id)
            assert before is not None
            head_before = before.head_sha
            around = repository.surroundings(uow.session, where.pull_request_id)
            assert around is not None
            row = follow(uow, around.repository, seen)
            reason = states.standstill(row, bot_settings(uow, where.project_id))
            if reason is not None:
                row.due_at = None
                row.silence = {**row.silence, states.ANALYSIS: reason}
                return reason
            if head_before != seen.head_sha:
                return "a newer push came: it is waited whether another one follows"
            if row.analysis_id is not None and not again:
                queue_publish(uow, around.repository, row)
                return "this head was analysed"
        return None

    @staticmethod
    def _merge_base(client: ForgeClient, where: _Where, seen: PullRequest) -> str | None:
        if seen.merge_base_sha is not None:
            return seen.merge_base_sha
        try:
            return client.merge_base(where.full_name, seen.base_sha, seen.head_sha)
        except ForgeNotFoundError:  # two histories that have nothing in common: all of it is new
            return None

    def _base(self, where: _Where, seen: PullRequest, merge_base: str | None) -> str | None:
        if merge_base is None:
            return None
        with self._database.reading() as session:
            known = repository.analysis_of_commit(session, where.project_id, merge_base)
        if known is not None:
            return known
        return self._analyses.submit(
            forge_subject(where.installation_id, where.account, where.project_id),
            GitSource(where.clone_url, merge_base),
            scope=f"forge:{where.repository_id}",
            occasion=Occasion(Purpose.BASE, branch=seen.base_ref),
        ).analysis_id

    def _head(self, where: _Where, seen: PullRequest, base: str | None, run: str) -> str:
        with self._database.reading() as session:
            ended = repository.ended_early(session, where.pull_request_id, seen.head_sha)
        return self._analyses.submit(
            forge_subject(where.installation_id, where.account, where.project_id),
            GitSource(where.clone_url, seen.head_sha),
            AnalysisOptions(reuse=not run),
            base=base,
            idempotency_key=f"{where.pull_request_id}:{seen.head_sha}:{base}:{run}:{ended}",
            scope=f"forge:{where.repository_id}",
            occasion=Occasion(Purpose.PROPOSAL, branch=seen.head_ref, pull_request_id=where.pull_request_id),
        ).analysis_id

    def _silent(self, claim: TaskClaim, where: _Where, reason: str) -> str:
        with self._tasks.owning(claim) as uow:
            row = repository.lock_pull_request(uow.session, where.pull_request_id)
            if row is not None:
                row.due_at = None
                row.silence = {**row.silence, states.ANALYSIS: reason}
        return reason
