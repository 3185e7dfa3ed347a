"""Pull requests for people who look: where each stands, what was written there, and why something was not.

Reads only. What the forge says in titles and names is untrusted text: escape it. This module must not speak to a forge.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from services.accounts.access import Subject
from services.analyses.models import AnalysisRow
from services.database import Database
from services.database.base import utc_now
from services.forges import overview_repository as repository
from services.forges.models import InstallationRow, PullRequestRow, RepositoryRow
from services.problems import NotFoundError

LISTED: Final = 50
_THREADS: Final = 100
_TASKS: Final = 50
_REPOSITORIES: Final = 20
_PLACES: Final = {"github": "pull", "gitlab": "-/merge_requests"}


class PullRequestNotFoundError(NotFoundError):
    """No pull request has this id, or none that may be seen."""

    code = "pull-request-not-found"
    title = "No such pull request"


@dataclass(frozen=True, slots=True)
class PullRequestSummary:
    """A pull request in a list. `passed` is None as long as its head has no settled analysis."""

    id: str
    project_id: str
    repository: str
    forge: str
    number: int
    url: str
    title: str
    author: str
    state: str
    is_draft: bool
    is_fork: bool
    head_sha: str
    analysis_id: str | None
    analysis_status: str | None
    passed: bool | None
    silent: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PullRequestPage:
    """Some pull requests, the newest first, and the cursor of the next page (None: there is none)."""

    items: tuple[PullRequestSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Circumstance:
    """Something that must hold before anything is written, whether it does, and what that means."""

    name: str
    holds: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class Written:
    """One kind of thing that we write. `silence` is the stated reason why it is not there; None: there is none."""

    name: str
    done: bool
    detail: str
    silence: str | None


@dataclass(frozen=True, slots=True)
class Thread:
    """A comment of ours at a line."""

    fingerprint: str
    path: str
    line: int
    state: str
    head_sha: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of work for the pull request; `event` is the webhook that began it, if one did."""

    kind: str
    state: str
    event: str
    delivery: str | None
    reason: str
    attempt: int
    due_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class PullRequestDetails:
    """Everything that there is to say about a pull request."""

    summary: PullRequestSummary
    base_ref: str
    head_ref: str
    merge_base_sha: str | None
    base_analysis_id: str | None
    pushes: int
    circumstances: tuple[Circumstance, ...]
    written: tuple[Written, ...]
    threads: tuple[Thread, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class WatchedRepository:
    """A repository at a forge whose analyses belong to a project."""

    forge: str
    full_name: str
    web_url: str


class PullRequestOverview:
    """Looks, and never changes anything."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, subject: Subject, project_id: str, *, state: str | None = None, before: str | None = None, limit: int = 20
    ) -> PullRequestPage:
        """The pull requests of a project, the newest first; none for whoever may not read the project."""
        limit = max(1, min(limit, LISTED))
        with self._database.reading() as session:
            rows = repository.pull_requests(
                session, subject, project_id=project_id, state=state, before=before, limit=limit + 1
            )
            items = tuple(_summary(request, place, analysis) for request, place, _, analysis in rows[:limit])
        return PullRequestPage(items, items[-1].id if len(rows) > limit else None)

    def get(self, subject: Subject, pull_request_id: str) -> PullRequestDetails:
        """One pull request. Raises `PullRequestNotFoundError`."""
        with self._database.reading() as session:
            found = repository.pull_request(session, subject, pull_request_id)
            if found is None:
                raise PullRequestNotFoundError(f"there is no pull request {pull_request_id!r}", id=pull_request_id)
            request, place, installation, analysis = found
            threads = repository.threads(session, request.id, _THREADS)
            return PullRequestDetails(
                summary=_summary(request, place, analysis),
                base_ref=request.base_ref,
                head_ref=request.head_ref,
                merge_base_sha=request.merge_base_sha,
                base_analysis_id=request.base_analysis_id,
                pushes=request.pushes,
                circumstances=_circumstances(request, place, installation, analysis),
                written=_written(request, len(threads)),
                threads=tuple(
                    Thread(row.fingerprint, row.path, row.line, row.state, row.head_sha, row.created_at)
                    for row in threads
                ),
                steps=tuple(
                    Step(
                        kind=task.kind,
                        state=task.state,
                        event="" if delivery is None else " ".join(filter(None, (delivery.event, delivery.action))),
                        delivery=None if delivery is None else delivery.delivery_id,
                        reason=task.reason or ("" if delivery is None else delivery.reason),
                        attempt=task.attempt,
                        due_at=task.due_at,
                        ended_at=task.ended_at,
                    )
                    for task, delivery in repository.tasks(session, request.id, _TASKS)
                ),
            )

    def repositories(self, subject: Subject, project_id: str) -> tuple[WatchedRepository, ...]:
        """The repositories at forges that are connected with a project."""
        with self._database.reading() as session:
            rows = repository.repositories(session, subject, project_id, _REPOSITORIES)
            return tuple(WatchedRepository(row.forge, row.full_name, row.web_url) for row in rows)


def _summary(request: PullRequestRow, place: RepositoryRow, analysis: AnalysisRow | None) -> PullRequestSummary:
    passed = None if analysis is None or not analysis.gate else bool(analysis.gate.get("passed"))
    return PullRequestSummary(
        id=request.id,
        project_id=place.project_id,
        repository=place.full_name,
        forge=place.forge,
        number=request.number,
        url=f"{place.web_url.rstrip('/')}/{_PLACES[place.forge]}/{request.number}",
        title=request.title,
        author=request.author,
        state=request.state,
        is_draft=request.is_draft,
        is_fork=request.is_fork,
        head_sha=request.head_sha,
        analysis_id=request.analysis_id,
        analysis_status=None if analysis is None else analysis.status,
        passed=passed,
        silent=len(request.silence),
        updated_at=request.updated_at,
    )


def _circumstances(
    request: PullRequestRow, place: RepositoryRow, installation: InstallationRow, analysis: AnalysisRow | None
) -> tuple[Circumstance, ...]:
    """In the order in which they are asked: the first that does not hold explains those after it."""
    return (
        _installed(place, installation),
        _not_throttled(installation),
        Circumstance(
            "the pull request is open",
            request.state == "open",
            "it is open" if request.state == "open" else f"it is {request.state}: nothing more is written there",
        ),
        Circumstance(
            "the bot is not paused here",
            request.paused_at is None,
            "it is not"
            if request.paused_at is None
            else f"it is paused: {request.pause_reason or 'no reason was given'}; `/gradproof rerun` begins again",
        ),
        _head_analysed(request, analysis),
        Circumstance(
            "what was written is about the present head",
            request.check_sha in {None, request.head_sha},
            "nothing was written yet"
            if request.check_sha is None
            else "the check is on the present head"
            if request.check_sha == request.head_sha
            else f"the check is on {request.check_sha[:10]}; the present head is {request.head_sha[:10]}",
        ),
    )


def _installed(place: RepositoryRow, installation: InstallationRow) -> Circumstance:
    name = "Gradproof is installed for the repository"
    if installation.removed_at is not None:
        return Circumstance(
            name, holds=False, explanation=f"the application was removed from {installation.account}: install it again"
        )
    if installation.suspended_at is not None:
        return Circumstance(
            name,
            holds=False,
            explanation=f"{installation.account} suspended the application: its owner can unsuspend it",
        )
    if place.removed_at is not None:
        return Circumstance(
            name, holds=False, explanation="the repository was taken out of the installation: add it there again"
        )
    return Circumstance(name, holds=True, explanation=f"{installation.account} has it")


def _not_throttled(installation: InstallationRow) -> Circumstance:
    name = "the forge lets us write"
    if installation.quiet_until is not None and installation.quiet_until > utc_now():
        until = installation.quiet_until.strftime("%Y-%m-%d %H:%M:%S UTC")
        return Circumstance(
            name,
            holds=False,
            explanation=f"it asked us to wait until {until}: {installation.quiet_reason or 'rate limit'}",
        )
    return Circumstance(name, holds=True, explanation="no rate limit is in force")


def _head_analysed(request: PullRequestRow, analysis: AnalysisRow | None) -> Circumstance:
    name = "the present head was analysed"
    head = request.head_sha[:10]
    if analysis is not None and analysis.finished_at is not None:
        return Circumstance(name, holds=True, explanation=f"{head} was analysed: {analysis.status}")
    if analysis is not None:
        return Circumstance(name, holds=False, explanation=f"the analysis of {head} is {analysis.status}")
    left = request.silence.get("analysis")
    if left:
        return Circumstance(name, holds=False, explanation=f"{head} was not analysed: {left}")
    if request.due_at is not None:
        due = request.due_at.strftime("%H:%M:%S UTC")
        return Circumstance(
            name, holds=False, explanation=f"the analysis of {head} begins at {due}, when no further push comes before"
        )
    return Circumstance(name, holds=False, explanation=f"no analysis of {head} was begun")


def _written(request: PullRequestRow, threads: int) -> tuple[Written, ...]:
    """What we write, one line each; reasons for other things than these come last, by their own name."""
    silence = {name: reason for name, reason in request.silence.items() if name != "analysis"}
    lines = (
        Written("check", request.check_id is not None, _check_detail(request), silence.pop("check", None)),
        Written(
            "inline",
            threads > 0,
            f"{threads} comment{'' if threads == 1 else 's'} at lines" if threads else "",
            silence.pop("inline", None),
        ),
        Written(
            "summary",
            request.summary_id is not None and request.summary_removed_at is None,
            _summary_detail(request),
            silence.pop("summary", None),
        ),
        Written(
            "sarif",
            request.sarif_sha is not None,
            f"uploaded for {request.sarif_sha[:10]}" if request.sarif_sha is not None else "",
            silence.pop("sarif", None),
        ),
    )
    return (*lines, *(Written(name, done=False, detail="", silence=reason) for name, reason in sorted(silence.items())))


def _check_detail(request: PullRequestRow) -> str:
    if request.check_id is None:
        return ""
    words = f"{request.check_state or 'written'} on {(request.check_sha or '')[:10]}"
    if request.check_pages:
        words += f", {request.check_pages} page{'' if request.check_pages == 1 else 's'} of annotations"
    return words


def _summary_detail(request: PullRequestRow) -> str:
    if request.summary_removed_at is not None:
        return "a person deleted our comment, which is respected"
    return "one comment, edited in place" if request.summary_id is not None else ""
