"""Obeys what people with permission to write tell the bot in a pull request: run again, pause, go on, ignore, explain.

One answer to a command at most, which names the command by a hidden marker, so that a task that is done twice answers
once. Whoever may not write gets no answer in a public repository: else anybody could have us write there. This module
must not know how a command is read, nor what an answer says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.database import Database
from services.database.base import utc_now
from services.forges import repository, states
from services.forges.client import ForgeClient
from services.forges.commands_text import (
    Command,
    Misread,
    ambiguous_answer,
    explain_finding_answer,
    explain_rule_answer,
    help_answer,
    ignored_answer,
    matching,
    misread_answer,
    not_allowed_answer,
    not_found_answer,
    pause_answer,
    read_command,
    rerun_answer,
    resume_answer,
)
from services.forges.connections import Forges
from services.forges.events import CommentWritten, Event
from services.forges.following import end_analyses, queue_analysing, queue_publish
from services.forges.markdown import fitted, marker, plain, read_marker
from services.forges.models import RepositoryRow
from services.forges.review import Review, select
from services.forges.reviews import Reviews
from services.forges.subjects import forge_subject
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.forges.values import Permission, Person
from services.problems import BadInputError, NotFoundError
from services.reports.document import FindingInfo
from services.settings import Settings
from services.triage.service import TriageService

_ANSWER: Final = "answer"
# The button asks for everything; the gravest are explained, and the report has the rest.
_EXPLAINED: Final = 3
_LARGEST_ANSWER: Final = 60_000
_STEERING: Final = frozenset({"rerun", "pause", "resume"})


@dataclass(frozen=True, slots=True)
class Order:
    """A comment, and where it was written."""

    repository_id: str
    event: Event
    comment: CommentWritten


@dataclass(frozen=True, slots=True)
class _Place:
    pull_request_id: str
    installation_id: str
    account: str
    full_name: str
    project_id: str
    is_private: bool
    author: str
    head_sha: str
    state: str


@dataclass(frozen=True, slots=True)
class _Conversation:
    client: ForgeClient
    full_name: str
    number: int

    def is_answered(self, key: str) -> bool:
        """Whether there is an answer of ours to this, a comment or a button."""
        return any(
            comment.by_us and read_marker(_ANSWER, comment.body) == key
            for comment in self.client.list_comments(self.full_name, self.number)
        )


class Commands:
    """What is done with comments of people."""

    def __init__(self, database: Database, settings: Settings, forges: Forges) -> None:
        self._database = database
        self._settings = settings
        self._forges = forges
        self._tasks = ForgeTasks(database, settings)
        self._reviews = Reviews(database, settings)
        self._triage = TriageService(database)

    def obey(self, claim: TaskClaim, order: Order) -> str | None:
        """Do what a comment asks for, and answer it; what came of it, None if it asks for nothing.

        Raises `ForgeError`, `LeaseLostError`.
        """
        command = read_command(order.comment.body)
        if command is None:
            return None
        place = self._place(order.repository_id, order.comment.number)
        if place is None:
            return "the pull request is not known yet"
        author = order.comment.author
        event = order.event
        repository_id = None if event.repository is None else event.repository.external_id
        with self._forges.client(event.forge, event.installation.external_id, repository_id) as client:
            allowed = client.permission(place.full_name, Person(author.external_id, author.login))
            conversation = _Conversation(client, place.full_name, order.comment.number)
            # A signature covers neither the number of a delivery nor the name of its event: one that was seen by others
            # can be sent again as a new one. What the comment got for an answer shows that it was obeyed.
            if conversation.is_answered(order.comment.comment_id):
                return "obeyed already: the comment has its answer"
            if not allowed.may_write:
                return self._refused(claim, client, order, place, allowed)
            answer = self._done(claim, command, place, author.login)
            self._answer(claim, conversation, order.comment.comment_id, answer)
        return command.name if isinstance(command, Command) else "a command that can't be obeyed"

    def explain(self, claim: TaskClaim, event: Event, repository_id: str, number: int) -> str:
        """The button of a check that asks for explanations: the gravest findings, in one comment."""
        place = self._place(repository_id, number)
        loaded = None if place is None else self._reviews.load(place.pull_request_id)
        if place is None or loaded is None:
            return "there is nothing to explain yet"
        told = select(loaded.review).findings[:_EXPLAINED]
        if not told:
            return "there is nothing to explain"
        answers = [explain_finding_answer(loaded.review, finding) for finding in told]
        answer = fitted(answers, tail=lambda _: "", limit=_LARGEST_ANSWER, separator="\n\n---\n\n")
        place_id = None if event.repository is None else event.repository.external_id
        with self._forges.client(event.forge, event.installation.external_id, place_id) as client:
            self._answer(claim, _Conversation(client, place.full_name, number), f"button-{claim.delivery_id}", answer)
        return "explained"

    # ------------------------------------------------------------------------------------------ doing

    def _done(self, claim: TaskClaim, command: Command | Misread, place: _Place, login: str) -> str:
        if isinstance(command, Misread):
            return misread_answer(command)
        if command.name in _STEERING:
            return self._steered(claim, command, place, login)
        if command.name == "ignore":
            return self._ignored(command, place, login)
        return self._explained(command, place) if command.name == "explain" else help_answer()

    def _steered(self, claim: TaskClaim, command: Command, place: _Place, login: str) -> str:
        """What is analysed from now on."""
        if place.state != "open":
            return f"The pull request is {place.state}: nothing is analysed or written here."
        if command.name == "pause":
            self._pause(claim, place, login)
            return pause_answer()
        again = command.name == "rerun"
        self._begin(claim, place, {"run": claim.delivery_id} if again else None)
        return rerun_answer(place.head_sha) if again else resume_answer()

    def _begin(self, claim: TaskClaim, place: _Place, details: dict[str, object] | None) -> None:
        with self._tasks.owning(claim) as uow:
            row = repository.lock_pull_request(uow.session, place.pull_request_id)
            if row is None:
                return
            states.resume(row)
            at = uow.session.get_one(RepositoryRow, row.repository_id)
            queue_analysing(uow, at, row, details=details)

    def _pause(self, claim: TaskClaim, place: _Place, login: str) -> None:
        with self._tasks.owning(claim) as uow:
            row = repository.lock_pull_request(uow.session, place.pull_request_id)
            if row is None:
                return
            states.pause(row, f"{login} asked for it; `/gradproof resume` goes on", now=utc_now())
            end_analyses(uow, row, "the pull request was paused")
            queue_publish(uow, uow.session.get_one(RepositoryRow, row.repository_id), row)

    def _ignored(self, command: Command, place: _Place, login: str) -> str:
        """Accept a finding in the name of the person; the check and the comment follow by themselves."""
        loaded = self._reviews.load(place.pull_request_id)
        reported = () if loaded is None else loaded.review.report.findings
        found = matching(command.subject, (finding.fingerprint for finding in reported))
        if loaded is None or not found:
            return not_found_answer(command.subject)
        if len(found) > 1:
            return ambiguous_answer(command.subject, found)
        who = forge_subject(place.installation_id, f"{login} at {place.account}", place.project_id)
        try:
            self._triage.accept(who, place.project_id, found[0], command.reason)
        except (BadInputError, NotFoundError) as error:
            return plain(error.message)
        return ignored_answer(_finding(loaded.review, found[0]), command.reason, login)

    def _explained(self, command: Command, place: _Place) -> str:
        loaded = self._reviews.load(place.pull_request_id)
        if loaded is not None:
            found = matching(command.subject, (each.fingerprint for each in loaded.review.report.findings))
            if len(found) > 1:
                return ambiguous_answer(command.subject, found)
            if found:
                return explain_finding_answer(loaded.review, _finding(loaded.review, found[0]))
        pages = f"{self._settings.public_url.rstrip('/')}/rules"
        return explain_rule_answer(command.subject, pages) or not_found_answer(command.subject)

    # ------------------------------------------------------------------------------------------ answering

    def _refused(self, claim: TaskClaim, client: ForgeClient, order: Order, place: _Place, allowed: Permission) -> str:
        login = order.comment.author.login
        if place.is_private or login == place.author:
            conversation = _Conversation(client, place.full_name, order.comment.number)
            self._answer(claim, conversation, order.comment.comment_id, not_allowed_answer(login))
        return f"{login} has the permission {allowed.value!r}, and commands need permission to write"

    def _answer(self, claim: TaskClaim, conversation: _Conversation, key: str, answer: str) -> None:
        """Answer once: a try whose end nobody saw may have done so."""
        if claim.attempt > 1 and conversation.is_answered(key):
            return
        with self._tasks.owning(claim):  # a worker that was cut off does not answer beside the one that took over
            pass
        body = f"{marker(_ANSWER, key)}\n{answer}"
        conversation.client.create_comment(conversation.full_name, conversation.number, body)

    def _place(self, repository_id: str, number: int) -> _Place | None:
        with self._database.reading() as session:
            row = repository.known_pull_request(session, repository_id, number)
            around = None if row is None else repository.surroundings(session, row.id)
            if around is None:
                return None
            return _Place(
                pull_request_id=around.pull_request.id,
                installation_id=around.installation.id,
                account=around.installation.account,
                full_name=around.repository.full_name,
                project_id=around.project.id,
                is_private=around.repository.is_private,
                author=around.pull_request.author,
                head_sha=around.pull_request.head_sha,
                state=around.pull_request.state,
            )


def _finding(review: Review, fingerprint: str) -> FindingInfo:
    return next(finding for finding in review.report.findings if finding.fingerprint == fingerprint)
