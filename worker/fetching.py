"""The `ingest` job: fetch a git source and store it as a snapshot.

A fetch that nobody waits for any more (its analysis was cancelled, its lease was lost) is stopped as soon as the
heartbeat has noticed; what it had fetched is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from services.forges.errors import ForgeError
from services.jobs.model import Claim
from services.jobs.models import JobState
from services.problems import GradproofError, SurroundingsError
from services.snapshots.errors import GitCancelledError
from services.snapshots.git import fetch
from worker.tools import Tools

log = structlog.get_logger(__name__)


def fetch_source(claims: Sequence[Claim], tools: Tools) -> None:
    """Fetch, store, report. A source that can't be had is a result; a machine that can't fetch is not."""
    (claim,) = claims
    work = tools.load(lambda: tools.results.ingest_work(claim))
    try:
        headers = tools.credentials(claim.analysis_id)
        tree = fetch(work.url, work.ref, tools.settings, cancelled=lambda: not tools.held.holds(claim), headers=headers)
        with tree:
            snapshot = tools.store.put(tree)
    except GitCancelledError:
        log.info("fetch_abandoned", job=claim.job_id)
    except GradproofError as error:
        if isinstance(error, SurroundingsError) or (isinstance(error, ForgeError) and error.retry):
            lost = error.message
            tools.end(claim, lambda: tools.results.lost(claim, lost))
            return
        reason = f"{error.code}: {error.message}"
        tools.end(claim, lambda: tools.results.ended(claim, JobState.FAILED, reason))
    else:
        tools.end(claim, lambda: tools.results.ingested(claim, snapshot))
