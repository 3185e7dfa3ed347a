"""Follows a pull request: writes down how the forge shows it now, ends what that makes needless, queues what is due.

Whoever looked at the forge hands over what it saw; everything else is one transaction of the caller. This module must
not speak to a forge.
"""

from __future__ import annotations

from datetime import timedelta

from services.analyses.models import OPEN_STATUSES, AnalysisStatus
from services.analyses.settlement import end_analysis
from services.database import UnitOfWork
from services.database.base import utc_now
from services.forges import repository, states
from services.forges.models import PullRequestRow, RepositoryRow
from services.forges.queueing import queue_task
from services.forges.values import PullRequest
from services.jobs import repository as jobs
from services.jobs.model import CONTROL_QUEUE
from services.jobs.models import JobState
from services.projects.settings import BotSettings, read_project_settings

# Of one pull request a handful of heads may be under way at a time.
_ENDED_AT_ONCE = 100


def bot_settings(uow: UnitOfWork, project_id: str) -> BotSettings:
    """What a project wants of the bot."""
    return read_project_settings(repository.project_settings(uow.session, project_id)).bot


def follow(uow: UnitOfWork, place: RepositoryRow, seen: PullRequest) -> PullRequestRow:
    """Bring a pull request up to what the forge shows, with all that follows from it."""
    row = repository.find_pull_request(uow.session, place.id, seen.number)
    is_new = row is None
    if row is None:
        row = PullRequestRow(
            repository_id=place.id,
            number=seen.number,
            state="open",
            pushes=0,
            base_ref=seen.base_ref,
            base_sha=seen.base_sha,
            head_ref=seen.head_ref,
            head_sha=seen.head_sha,
            silence={},
        )
        uow.session.add(row)
    what = states.observe(row, seen, bot_settings(uow, place.project_id), now=utc_now(), is_new=is_new)
    uow.session.flush()
    if what.superseded is not None:
        end_analyses(uow, row, what.superseded)
    if what.analyse_after is not None:
        queue_analysing(uow, place, row, what.analyse_after)
    elif what.paused:
        queue_publish(uow, place, row)
    return row


def queue_analysing(
    uow: UnitOfWork,
    place: RepositoryRow,
    row: PullRequestRow,
    after: timedelta = timedelta(0),
    details: dict[str, object] | None = None,
) -> None:
    """Have the present head analysed, once `after` has passed without a further push."""
    row.due_at = utc_now() + after
    queue_task(
        uow.session,
        "analyse",
        row.id,
        installation_id=place.installation_id,
        pull_request_id=row.id,
        after=after,
        details=details,
    )
    uow.ring(CONTROL_QUEUE)


def queue_publish(uow: UnitOfWork, place: RepositoryRow, row: PullRequestRow) -> None:
    """Have the forge brought up to date."""
    queue_task(uow.session, "publish", row.id, installation_id=place.installation_id, pull_request_id=row.id)
    uow.ring(CONTROL_QUEUE)


def end_analyses(uow: UnitOfWork, row: PullRequestRow, reason: str, *, keep: str | None = None) -> None:
    """End the analyses of a pull request that nobody waits for any more; one of its present head is forgotten."""
    for analysis_id in repository.open_analyses_of(uow.session, row.id)[:_ENDED_AT_ONCE]:
        if analysis_id == keep:
            continue
        if analysis_id == row.analysis_id:
            row.analysis_id = None
            uow.session.flush()
        end_superseded(uow, analysis_id, reason)


def end_superseded(uow: UnitOfWork, analysis_id: str, reason: str) -> None:
    """End one analysis, if it is open: workers notice at their next heartbeat."""
    row = jobs.lock_analysis(uow.session, analysis_id)
    if row is None or row.status not in OPEN_STATUSES:
        return
    jobs.cancel_open(uow.session, analysis_id, JobState.SUPERSEDED, reason)
    end_analysis(uow.session, row, AnalysisStatus.CANCELLED, reason)
