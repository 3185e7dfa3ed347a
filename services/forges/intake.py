"""Deals with one webhook: a change of an installation or a repository is written down, a pull request is looked at.

An event says where to look; what is done follows from what the forge shows then. So it does no harm if deliveries come
twice, late or in any order. This module must not decide when something is analysed (`states`), nor write to the forge
but for answers to commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from services.analyses.model import GitSource
from services.analyses.models import Purpose
from services.analyses.occasion import Occasion
from services.analyses.service import AnalysisService
from services.database import Database, UnitOfWork
from services.database.base import utc_now
from services.forges import repository, states, task_repository
from services.forges.check_output import EXPLAIN
from services.forges.commands import Commands, Order
from services.forges.connections import Forges
from services.forges.events import (
    EVENT,
    CheckRequested,
    CommentWritten,
    Event,
    InstallationChanged,
    PullRequestChanged,
    Pushed,
    RepositoriesChanged,
    RepositoryChanged,
    RepositoryRef,
    Speaker,
    ThreadChanged,
)
from services.forges.following import end_superseded, follow, queue_analysing, queue_publish
from services.forges.models import InstallationRow, RepositoryRow
from services.forges.subjects import forge_subject
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.projects.models import ProjectRow
from services.settings import Settings

log = structlog.get_logger(__name__)

_LONGEST_NAME: Final = 100
SUPERSEDED_MAIN: Final = "superseded by a newer push to the main line"


@dataclass(frozen=True, slots=True)
class _Done:
    """What came of a delivery: dealt with, or left alone, and why."""

    reason: str = ""
    ignored: bool = False


class Intake:
    """What is done with webhooks."""

    def __init__(self, database: Database, settings: Settings, forges: Forges) -> None:
        self._database = database
        self._settings = settings
        self._forges = forges
        self._tasks = ForgeTasks(database, settings)
        self._analyses = AnalysisService(database, settings)
        self._commands = Commands(database, settings, forges)

    def deal_with(self, claim: TaskClaim) -> str:
        """Deal with the delivery of a task; what came of it. Raises `ForgeError`, `LeaseLostError`."""
        assert claim.delivery_id is not None
        with self._database.reading() as session:
            row = task_repository.delivery(session, claim.delivery_id)
            payload = None if row is None else row.payload
        if payload is None:
            return "it was dealt with before"
        event = EVENT.validate_python(payload)
        installation_id = self._installed(claim, event)
        done = self._dispatch(claim, event, installation_id)
        with self._tasks.owning(claim) as uow:
            row = task_repository.delivery(uow.session, claim.delivery_id)
            if row is not None:
                row.outcome = "ignored" if done.ignored else "done"
                row.reason, row.payload, row.ended_at = done.reason, None, utc_now()
        return done.reason

    def give_up(self, claim: TaskClaim, reason: str) -> None:
        """A delivery can't be dealt with: say so of it, too."""
        if claim.delivery_id is None:
            return
        with self._database.unit_of_work() as uow:
            row = task_repository.delivery(uow.session, claim.delivery_id)
            if row is not None and row.ended_at is None:
                row.outcome, row.reason, row.payload, row.ended_at = "failed", reason, None, utc_now()

    # ------------------------------------------------------------------------------------------ dispatching

    def _installed(self, claim: TaskClaim, event: Event) -> str:
        """The installation that the event came through; one that nobody told us of is written down now."""
        with self._tasks.owning(claim) as uow:
            row = repository.ensure_installation(
                uow.session, event.forge, event.installation, self._settings.forge_organisation
            )
            uow.session.flush()
            if claim.installation_id is None:
                task_repository.belongs_to_installation(uow.session, claim, row.id)
            return row.id

    def _dispatch(self, claim: TaskClaim, event: Event, installation_id: str) -> _Done:
        what = event.what
        if isinstance(what, InstallationChanged):
            return self._installation(claim, installation_id, what)
        if isinstance(what, RepositoriesChanged):
            return self._repositories(claim, installation_id, what)
        if event.repository is None:
            return _Done("it names no repository", ignored=True)
        if isinstance(what, RepositoryChanged):
            return self._repository(claim, event, installation_id, what)
        with self._tasks.owning(claim) as uow:
            place = self._place(uow, event.repository, installation_id)
            _is_active(uow, place, claim)
        return self._in_repository(claim, event, place.id)

    def _in_repository(self, claim: TaskClaim, event: Event, repository_id: str) -> _Done:
        what = event.what
        if isinstance(what, Pushed):
            return self._pushed(claim, repository_id, what)
        if isinstance(what, PullRequestChanged):
            return self._look(claim, event, repository_id, what.number)
        if isinstance(what, CheckRequested):
            return self._check(claim, event, repository_id, what)
        if isinstance(what, CommentWritten):
            return self._comment(claim, event, repository_id, what)
        assert isinstance(what, ThreadChanged)
        return self._somebody(claim, repository_id, what.number, is_person=not what.sender.is_bot)

    # ------------------------------------------------------------------------------------------ installations

    def _installation(self, claim: TaskClaim, installation_id: str, what: InstallationChanged) -> _Done:
        with self._tasks.owning(claim) as uow:
            row = uow.session.get_one(InstallationRow, installation_id)
            if what.permissions:
                row.permissions = dict(what.permissions)
            if what.change == "removed":
                row.removed_at = utc_now()
            elif what.change == "suspended":
                row.suspended_at = utc_now()
            else:
                row.suspended_at = row.removed_at = None
                # What could not be said before can be now.
                for pull_request in repository.silent_pull_requests(uow.session, installation_id):
                    place = uow.session.get_one(RepositoryRow, pull_request.repository_id)
                    queue_publish(uow, place, pull_request)
        return _Done(f"the installation was {_WORDS[what.change]}")

    def _repositories(self, claim: TaskClaim, installation_id: str, what: RepositoriesChanged) -> _Done:
        with self._tasks.owning(claim) as uow:
            for row in repository.repositories_of(uow.session, installation_id, what.removed):
                row.removed_at = utc_now()
            for row in repository.repositories_of(uow.session, installation_id, what.added):
                row.removed_at = None
        return _Done(f"{len(what.added)} repositories came, {len(what.removed)} went")

    def _repository(self, claim: TaskClaim, event: Event, installation_id: str, what: RepositoryChanged) -> _Done:
        assert event.repository is not None
        with self._tasks.owning(claim) as uow:
            row = repository.find_repository(uow.session, event.forge, event.repository.external_id)
            if row is None:
                return _Done("the repository was never analysed", ignored=True)
            if what.change == "removed":
                row.removed_at = utc_now()
                repository.archive_project(uow.session, row.project_id)
                return _Done("the repository is gone: its project is archived")
            self._place(uow, event.repository, installation_id)
        return _Done(f"the repository is {event.repository.full_name} now")

    def _place(self, uow: UnitOfWork, ref: RepositoryRef, installation_id: str) -> RepositoryRow:
        installation = uow.session.get_one(InstallationRow, installation_id)
        slug = repository.organisation_slug(uow.session, installation.organisation_id)
        return repository.ensure_repository(uow.session, installation, ref, project_name(slug, ref))

    # ------------------------------------------------------------------------------------------ pushes, pull requests

    def _pushed(self, claim: TaskClaim, repository_id: str, what: Pushed) -> _Done:
        """The main line moved: its present tip is what later changes are compared with, whichever push told of it."""
        with self._database.reading() as session:
            place = session.get_one(RepositoryRow, repository_id)
            installation = session.get_one(InstallationRow, place.installation_id)
            beyond = repository.beyond_reach(installation, place, session.get_one(ProjectRow, place.project_id))
        if what.branch != place.default_branch:
            return _Done(f"only pushes to {place.default_branch} are analysed by themselves", ignored=True)
        if beyond is not None:
            return _Done(beyond, ignored=True)
        with self._forges.client(place.forge, installation.external_id, place.external_id) as client:
            tip = client.branch_tip(place.full_name, what.branch)
        with self._database.reading() as session:
            if repository.main_line_is_at(session, place.project_id, tip):
                return _Done(f"{tip[:10]}, where {what.branch} is now, was analysed before", ignored=True)
            earlier = repository.main_analyses_of(session, place.project_id, tip)
        submitted = self._analyses.submit(
            forge_subject(place.installation_id, installation.account, place.project_id),
            GitSource(place.clone_url, tip),
            # The same try gives the same analysis; a commit that came to nothing, or came back, another one.
            idempotency_key=f"main:{tip}:{earlier}",
            scope=f"forge:{place.id}",
            occasion=Occasion(Purpose.MAIN, branch=what.branch),
        )
        with self._tasks.owning(claim) as uow:
            for analysis_id in repository.overtaken_main_analyses(
                uow.session, place.project_id, place.installation_id, submitted.analysis_id
            ):
                end_superseded(uow, analysis_id, SUPERSEDED_MAIN)
        return _Done(f"analysis {submitted.analysis_id} of {what.branch} at {tip[:10]}")

    def _look(self, claim: TaskClaim, event: Event, repository_id: str, number: int) -> _Done:
        """See how a pull request is now, and follow it."""
        assert event.repository is not None
        with self._forges.client(event.forge, event.installation.external_id, event.repository.external_id) as client:
            seen = client.pull_request(event.repository.full_name, number)
        with self._tasks.owning(claim) as uow:
            row = follow(uow, uow.session.get_one(RepositoryRow, repository_id), seen)
            task_repository.belongs_to_pull_request(uow.session, claim, row.id)
            return _Done(row.silence.get(states.ANALYSIS, ""))

    def _check(self, claim: TaskClaim, event: Event, repository_id: str, what: CheckRequested) -> _Done:
        with self._database.reading() as session:
            known = repository.numbers_with_head(session, repository_id, what.head_sha)
        numbers = sorted({*what.numbers, *known})
        if not numbers:
            return _Done("no pull request that is known has this head", ignored=True)
        if what.action == EXPLAIN.identifier:
            return _Done(self._commands.explain(claim, event, repository_id, numbers[0]))
        for number in numbers:
            self._look(claim, event, repository_id, number)
            if not what.again:
                continue
            with self._tasks.owning(claim) as uow:
                row = repository.find_pull_request(uow.session, repository_id, number)
                if row is not None and row.head_sha == what.head_sha and row.state == "open":
                    states.resume(row)
                    place = uow.session.get_one(RepositoryRow, repository_id)
                    queue_analysing(uow, place, row, details={"run": claim.delivery_id})
        return _Done("run again" if what.again else "")

    # ------------------------------------------------------------------------------------------ people

    def _comment(self, claim: TaskClaim, event: Event, repository_id: str, what: CommentWritten) -> _Done:
        if what.author.is_bot or self._is_us(event, what.author):
            return _Done("it was written by a bot", ignored=True)
        done = self._somebody(claim, repository_id, what.number, is_person=True)
        if what.at_line:
            return done
        order = Order(repository_id=repository_id, event=event, comment=what)
        answered = self._commands.obey(claim, order)
        if answered is None:
            return _Done("it holds no command", ignored=True)
        return _Done(answered)

    def _is_us(self, event: Event, author: Speaker) -> bool:
        """GitLab tells of our own comments, too, and not that they are a bot's."""
        if event.forge != "gitlab":
            return False
        with self._forges.client(event.forge, event.installation.external_id) as client:
            return client.identity().identifier == author.external_id

    def _somebody(self, claim: TaskClaim, repository_id: str, number: int, *, is_person: bool) -> _Done:
        if not is_person:
            return _Done("it was done by a bot", ignored=True)
        with self._tasks.owning(claim) as uow:
            row = repository.find_pull_request(uow.session, repository_id, number)
            if row is not None:
                states.somebody_is_there(row)
                task_repository.belongs_to_pull_request(uow.session, claim, row.id)
        return _Done()


_WORDS: Final[Mapping[str, str]] = {
    "created": "made",
    "removed": "removed",
    "suspended": "suspended",
    "unsuspended": "taken up again",
    "permissions": "given other permissions",
}


def _is_active(uow: UnitOfWork, place: RepositoryRow, claim: TaskClaim) -> None:
    """A forge sends no events of what is suspended or removed: one that came later shows that it was taken up again."""
    installation = uow.session.get_one(InstallationRow, place.installation_id)
    delivery = None if claim.delivery_id is None else task_repository.delivery(uow.session, claim.delivery_id)
    if delivery is None:
        return
    if installation.suspended_at is not None and installation.suspended_at < delivery.received_at:
        installation.suspended_at = None
    if installation.removed_at is not None and installation.removed_at < delivery.received_at:
        installation.removed_at = None


def project_name(organisation: str, ref: RepositoryRef) -> str:
    """The full name of the project of a repository.

    `owner.name`: with a stroke it would read as a project of the organisation `owner`. GitHub allows no dot in the
    name of an owner, so that two repositories never come to one name there; elsewhere the second one gets its number.
    """
    bare = ref.full_name.replace("/", ".").lstrip("._-") or ref.external_id
    name = f"{organisation}/{bare}" if organisation else bare
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 21]}.{ref.external_id[:20]}"
