"""Submitting analyses, watching them, stopping them, running them again."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field

from api import examples
from api.authentication import Reader, Submitter
from api.context import Context, ContextDependency
from api.documents import ANALYSIS_PROBLEMS, SUBMISSION_BODY, SUBMISSION_RESPONSES, answers, problems
from api.events import EVENT_SCHEMA, StreamsDependency
from api.parameters import ID_PATTERN, AnalysisId
from api.presentation import analysis_out, links_of
from api.schemas import EXAMPLE_STATUS, AnalysisOut, Body, GitSubmission, Page, ProjectName, Submitted
from api.submissions import ArchiveSubmission, idempotency_key, parse_options, read_submission
from services.accounts import Subject
from services.analyses import service as analyses
from services.analyses.model import AnalysisOptions, GitSource
from services.analyses.models import Purpose
from services.analyses.occasion import Occasion
from services.reports.document import AnalysisStatus
from services.snapshots import Snapshot, read_archive

_COMMIT = re.compile("[0-9a-f]{40}")

router = APIRouter(prefix="/analyses", tags=["analyses"])


class Filters(Body):
    """Which analyses to list."""

    project: ProjectName | None = Field(default=None, description="only those of this project")
    status: list[AnalysisStatus] = Field(default=[], description="only those with one of these statuses")
    cursor: str | None = Field(default=None, pattern=ID_PATTERN, description="`next_cursor` of the page before")
    limit: int = Field(default=20, ge=1, le=analyses.PAGE_LIMIT)


@router.post(
    "",
    status_code=202,
    summary="Submit an archive or a git commit",
    responses=SUBMISSION_RESPONSES,
    openapi_extra=SUBMISSION_BODY,
)
async def submit(request: Request, response: Response, context: ContextDependency, caller: Submitter) -> Submitted:
    """Take a submission and queue its analysis; the answer comes before anything was read or run.

    Send the same `Idempotency-Key` with a repeated request: the same submission gives the same analysis, and another
    one is refused with 409. Keys are kept for a day, apart for each token.
    """
    key = idempotency_key(request)
    async with read_submission(request) as submission:
        if isinstance(submission, ArchiveSubmission):
            submitted = await run_in_threadpool(_submit_archive, context, submission, key, caller)
        else:
            submitted = await run_in_threadpool(_submit_git, context, submission, key, caller)
    response.headers["Location"] = submitted.links.self
    return submitted


@router.get("", summary="List analyses", responses=answers(examples.ANALYSES) | problems(401, 403, 422))
def list_analyses(
    context: ContextDependency, caller: Reader, filters: Annotated[Filters, Query()]
) -> Page[AnalysisOut]:
    """Analyses, the newest first, page by page."""
    page = context.analyses.list(
        caller, limit=filters.limit, cursor=filters.cursor, project=filters.project, statuses=filters.status
    )
    return Page(items=[analysis_out(view) for view in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{analysis_id}",
    summary="Status, progress and gate of an analysis",
    responses=answers(EXAMPLE_STATUS) | ANALYSIS_PROBLEMS,
)
def get_analysis(analysis_id: AnalysisId, context: ContextDependency, caller: Reader) -> AnalysisOut:
    """How an analysis stands: its stages, and its gate once it has ended."""
    return analysis_out(context.analyses.get(caller, analysis_id))


@router.get(
    "/{analysis_id}/events",
    summary="The same, live",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `progress` whenever something changed, `finished` at the end. "
            "`Last-Event-ID` takes a stream up again that was broken, or that the server ended before that.",
            "content": {
                "text/event-stream": {
                    "schema": EVENT_SCHEMA,
                    "example": 'event: progress\nid: 3f2a9c0d1e4b5a67\ndata: {"id": "…", "status": "running"}\n\n',
                }
            },
        },
        **ANALYSIS_PROBLEMS,
    },
)
async def watch(
    analysis_id: AnalysisId, request: Request, context: ContextDependency, streams: StreamsDependency, caller: Reader
) -> StreamingResponse:
    """Server-sent events until the analysis has ended, or the stream has lived for long enough."""

    async def look() -> tuple[AnalysisOut, bool]:
        view = await run_in_threadpool(context.analyses.get, caller, analysis_id)
        return analysis_out(view), view.ended

    await look()  # an unknown analysis is answered with a problem, not with a stream that breaks off
    return streams.respond(caller.owner, look, last_event_id=request.headers.get("last-event-id"))


@router.post(
    "/{analysis_id}/cancel",
    summary="Stop an analysis",
    responses=answers(examples.CANCELLED) | problems(401, 403, 404, 409),
)
def cancel(analysis_id: AnalysisId, context: ContextDependency, caller: Submitter) -> AnalysisOut:
    """End all open jobs of an analysis. Cancelling twice is harmless; one that has ended is refused with 409."""
    return analysis_out(context.analyses.cancel(caller, analysis_id))


@router.post(
    "/{analysis_id}/rerun",
    status_code=202,
    summary="Analyse the same source again",
    responses=answers(examples.SUBMITTED, status=202) | problems(401, 403, 404, 409),
)
def rerun(analysis_id: AnalysisId, response: Response, context: ContextDependency, caller: Submitter) -> Submitted:
    """A new analysis of the same source with the same options; an archived project takes none (409)."""
    submitted = context.analyses.rerun(caller, analysis_id)
    response.headers["Location"] = links_of(submitted.analysis_id).self
    return _accepted(submitted.analysis_id, context, caller)


def _submit_archive(context: Context, submission: ArchiveSubmission, key: str | None, caller: Subject) -> Submitted:
    with read_archive(submission.upload.file, submission.filename) as tree:
        snapshot: Snapshot = context.store.put(tree)
    submitted = context.analyses.submit(
        caller,
        snapshot,
        submission.options,
        project=submission.placement.project,
        base=submission.placement.base,
        idempotency_key=key,
        scope=caller.id,
    )
    return _accepted(submitted.analysis_id, context, caller)


def _submit_git(context: Context, submission: GitSubmission, key: str | None, caller: Subject) -> Submitted:
    options = parse_options(submission.options)
    base = submission.base
    if submission.base_ref is not None:
        base = _baseline(context, submission, options, caller)
    if submission.base_ref is not None and base is None:
        base = context.analyses.submit(
            caller,
            GitSource(submission.git_url, submission.base_ref),
            options,
            project=submission.project,
            idempotency_key=f"{key} (base)" if key else None,
            scope=caller.id,
            occasion=Occasion(Purpose.BASE),
            followed_by=1,
        ).analysis_id
    submitted = context.analyses.submit(
        caller,
        GitSource(submission.git_url, submission.ref),
        options,
        project=submission.project,
        base=base,
        idempotency_key=key,
        scope=caller.id,
    )
    return _accepted(submitted.analysis_id, context, caller)


def _baseline(context: Context, submission: GitSubmission, options: AnalysisOptions, caller: Subject) -> str | None:
    """An analysis of the base that was made before: of a branch nobody knows yet which commit it is."""
    if submission.project is None or not _COMMIT.fullmatch(submission.base_ref or ""):
        return None
    return context.results.baseline(caller, submission.project, submission.base_ref or "", options)


def _accepted(analysis_id: AnalysisId, context: Context, caller: Subject) -> Submitted:
    view = context.analyses.get(caller, analysis_id)
    return Submitted(id=view.id, status=view.status, links=links_of(view.id, base=view.base_id))
