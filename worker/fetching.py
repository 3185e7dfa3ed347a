"""The `ingest` job: fetch a git source and store it as a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from services.jobs.model import Claim
from services.jobs.models import JobState
from services.problems import GradproofError, SurroundingsError
from services.snapshots.git import fetch
from worker.tools import Tools


def fetch_source(claims: Sequence[Claim], tools: Tools) -> None:
    """Fetch, store, report. A source that can't be had is a result; a machine that can't fetch is not."""
    (claim,) = claims
    work = tools.load(lambda: tools.results.ingest_work(claim))
    try:
        tree, commit = fetch(work.url, work.ref, tools.settings)
        with tree:
            snapshot = tools.store.put(tree)
    except SurroundingsError as error:
        reason = error.message
        tools.end(claim, lambda: tools.results.lost(claim, reason))
    except GradproofError as error:
        reason = f"{error.code}: {error.message}"
        tools.end(claim, lambda: tools.results.ended(claim, JobState.FAILED, reason))
    else:
        tools.end(
            claim,
            lambda: tools.results.ingested(
                claim, digest=snapshot.digest, files=snapshot.files, lines=snapshot.lines, commit=commit
            ),
        )
