"""One publication: what is known of a pull request, and the few ways in which something is written for it.

Before each write the forge is asked for the present head, since an analysis takes minutes and a push takes none: for
another head nothing is written. What the forge has is remembered after each write, in a transaction that the task has
to own, so that a worker that lost it remembers nothing. This module must not know what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from services.database import Database, UnitOfWork
from services.database.base import utc_now
from services.forges import repository
from services.forges.client import ForgeClient
from services.forges.models import PullRequestRow
from services.forges.repository import Surroundings
from services.forges.review import Review
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.forges.values import ReviewThread
from services.projects.settings import BotSettings
from services.settings import Settings

CHECK: Final = "check"
SUMMARY: Final = "summary"
INLINE: Final = "inline"
THREADS: Final = "threads"
SARIF: Final = "sarif"


class StaleHeadError(Exception):
    """The pull request has another head by now, or was closed: nothing of this analysis is written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pull request is."""

    forge: Literal["github", "gitlab"]
    installation: str
    repository: str
    full_name: str
    web_url: str
    number: int
    project_id: str
    account: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the forge has, as far as we know: a copy of the row's columns of the same names."""

    head_sha: str
    state: str
    is_fork: bool
    paused: str | None
    check_sha: str | None
    check_id: str | None
    check_state: str
    check_digest: str
    check_pages: int
    summary_id: str | None
    summary_digest: str
    summary_removed_at: datetime | None
    sarif_sha: str | None


@dataclass(frozen=True, slots=True)
class AnalysisStand:
    """How the analysis of the head stands. `reason`: why it is not `finished`."""

    id: str
    status: str
    reason: str | None
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finished_at is not None

    @property
    def is_settled(self) -> bool:
        """Whether there are results to tell of."""
        return self.status in {"finished", "partial"}


@dataclass(slots=True)
class Publication:
    """What is known, and how something is written. `review` is None until there are results.

    `earlier` are the fingerprints that earlier heads of the pull request had. The directories hold what was analysed,
    None where it is not kept any more. `threads` are the conversations at lines, as they were last looked at.
    """

    database: Database
    settings: Settings
    tasks: ForgeTasks
    claim: TaskClaim
    client: ForgeClient
    pull_request_id: str
    place: Place
    known: Remembered
    bot: BotSettings
    analysis: AnalysisStand | None
    review: Review | None = None
    earlier: frozenset[str] = frozenset()
    head_directory: Path | None = None
    base_directory: Path | None = None
    threads: tuple[ReviewThread, ...] = ()
    silence: dict[str, str] = field(default_factory=dict)

    def require_present_head(self) -> None:
        """Before each write. Raises `StaleHeadError`, `ForgeError`, or `LeaseLostError`.

        The task has to be ours, too: a worker that was cut off for a while must not write beside the one that took
        over.
        """
        seen = self.client.pull_request(self.place.full_name, self.place.number)
        if seen.head_sha != self.known.head_sha:
            raise StaleHeadError(
                f"{self.known.head_sha[:10]} is no longer the head: {seen.head_sha[:10]} is, which is told of instead"
            )
        if seen.state != "open":
            raise StaleHeadError(f"the pull request is {seen.state}")
        with self.tasks.owning(self.claim):
            pass

    def remember(self, change: Callable[[PullRequestRow], None]) -> None:
        """Write down what the forge has now. Raises `LeaseLostError`."""
        with self.owning() as (uow, row):
            change(row)
            uow.session.flush()
            self.known = remembered(row)

    @contextmanager
    def owning(self) -> Iterator[tuple[UnitOfWork, PullRequestRow]]:
        """A transaction with the row, in which the task is surely ours. Raises `LeaseLostError`."""
        with self.tasks.owning(self.claim) as uow:
            row = repository.lock_pull_request(uow.session, self.pull_request_id)
            assert row is not None
            row.updated_at = utc_now()
            yield uow, row

    def told(self, part: str) -> None:
        """This was written, or has nothing to say."""
        self.silence.pop(part, None)

    def silent(self, part: str, reason: str) -> None:
        """This was not written, and why."""
        self.silence[part] = reason

    @property
    def page_url(self) -> str:
        """Where people read the report."""
        base = self.settings.public_url.rstrip("/")
        return f"{base}/analyses/{self.analysis.id}" if self.analysis is not None else base

    @property
    def why_silent_url(self) -> str:
        """Where people read why something was not written."""
        return f"{self.settings.public_url.rstrip('/')}/pull-requests/{self.pull_request_id}"


def remembered(row: PullRequestRow) -> Remembered:
    """A copy of what the row remembers."""
    return Remembered(
        head_sha=row.head_sha,
        state=row.state,
        is_fork=row.is_fork,
        paused=row.pause_reason if row.paused_at is not None else None,
        check_sha=row.check_sha,
        check_id=row.check_id,
        check_state=row.check_state,
        check_digest=row.check_digest,
        check_pages=row.check_pages,
        summary_id=row.summary_id,
        summary_digest=row.summary_digest,
        summary_removed_at=row.summary_removed_at,
        sarif_sha=row.sarif_sha,
    )


def place_of(around: Surroundings) -> Place:
    """Where a pull request is."""
    return Place(
        forge="gitlab" if around.repository.forge == "gitlab" else "github",
        installation=around.installation.external_id,
        repository=around.repository.external_id,
        full_name=around.repository.full_name,
        web_url=around.repository.web_url.rstrip("/"),
        number=around.pull_request.number,
        project_id=around.project.id,
        account=around.installation.account,
    )
