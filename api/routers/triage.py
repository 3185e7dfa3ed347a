"""The findings of a project: looking for them, deciding about them, talking about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.authentication import Reader, Triager
from api.context import Context, ContextDependency
from api.documents import answers, problems
from api.parameters import ProjectKey
from api.schemas import Body, Page
from api.triage_schemas import (
    BULK_EXAMPLE,
    EVENT_EXAMPLE,
    FINDING_EXAMPLE,
    ONE_EXAMPLE,
    PAGE_EXAMPLE,
    BulkBody,
    BulkOut,
    CommentBody,
    DecisionBody,
    FilterBody,
    FindingWithHistory,
    ProjectFindingOut,
    SuggestionOut,
    TriageEventOut,
    UntilOut,
)
from services.accounts import Subject
from services.triage.decisions import Change, Decision, Verb
from services.triage.model import FindingFilter, ProjectFinding, TriageEvent, Until

router = APIRouter(prefix="/projects/{project}/findings", tags=["triage"])

_VERBS: dict[str, Verb] = {"accepted": "accept", "false_positive": "false_positive", "open": "reopen"}


class FindingQuery(FilterBody):
    """Which findings to list."""

    cursor: str | None = Field(default=None, max_length=60, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=200)


class HistoryQuery(Body):
    """Which part of the history to show."""

    cursor: str | None = Field(default=None, max_length=60, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=200)


@router.get("", summary="Findings of a project", responses=answers(PAGE_EXAMPLE) | problems(401, 403, 404, 422))
def list_project_findings(
    project: ProjectKey, context: ContextDependency, caller: Reader, query: Annotated[FindingQuery, Query()]
) -> Page[ProjectFindingOut]:
    """What the analyses of the project have found, by fingerprint: the gravest first, and of those the newest."""
    page = context.inbox.findings(caller, project, _filter(query), limit=query.limit, cursor=query.cursor)
    return Page(items=[_out(item) for item in page.items], next_cursor=page.next_cursor)


@router.post(
    "/bulk",
    summary="Decide about many findings",
    responses=answers(BULK_EXAMPLE) | problems(401, 403, 404, 422),
)
def decide_many(project: ProjectKey, body: BulkBody, context: ContextDependency, caller: Triager) -> BulkOut:
    """The same decision about all findings that are named, or that a filter takes; 500 at most at once.

    Findings for which it makes no sense are left as they are, and told of.
    """
    wanted = None if body.filter is None else _filter(body.filter)
    done = context.triage.change_many(caller, project, _change(body), fingerprints=body.fingerprints, wanted=wanted)
    return BulkOut(changed=list(done.changed), unchanged=list(done.unchanged), missing=list(done.missing))


@router.get(
    "/{fingerprint}",
    summary="One finding of a project, with its history",
    responses=answers(ONE_EXAMPLE) | problems(401, 403, 404, 422),
)
def get_project_finding(
    project: ProjectKey,
    fingerprint: str,
    context: ContextDependency,
    caller: Reader,
    query: Annotated[HistoryQuery, Query()],
) -> FindingWithHistory:
    """A finding as it was last seen, what was decided about it, who might look after it, and its history, the newest
    first.
    """
    found = context.inbox.finding(caller, project, fingerprint)
    history = context.inbox.history(caller, project, fingerprint, limit=query.limit, cursor=query.cursor)
    return FindingWithHistory(
        **_out(found).model_dump(),
        suggested=[
            SuggestionOut(role=who.role, name=who.name, user_id=who.user_id, why=who.why)
            for who in context.triage.suggest_assignees(caller, project, fingerprint)
        ],
        history=[_event(item) for item in history.items],
        next_cursor=history.next_cursor,
    )


@router.patch(
    "/{fingerprint}",
    summary="Decide about a finding",
    responses=answers(FINDING_EXAMPLE) | problems(401, 403, 404, 422),
)
def decide(
    project: ProjectKey, fingerprint: str, body: DecisionBody, context: ContextDependency, caller: Triager
) -> ProjectFindingOut:
    """Accept a finding with a reason, call it a false positive, open it again, or give it to somebody.

    The newest analyses of the project show the decision, and their gates are judged anew.
    """
    return _out(context.triage.change(caller, project, fingerprint, _change(body)))


@router.post(
    "/{fingerprint}/comments",
    status_code=201,
    summary="Comment on a finding",
    responses=answers(EVENT_EXAMPLE | {"kind": "commented"}, status=201) | problems(401, 403, 404, 422),
)
def comment(
    project: ProjectKey, fingerprint: str, body: CommentBody, context: ContextDependency, caller: Triager
) -> TriageEventOut:
    """Say something about a finding; its history shows it."""
    context.triage.comment(caller, project, fingerprint, body.text)
    return _newest_event(context, caller, project, fingerprint)


def _newest_event(context: Context, caller: Subject, project: str, fingerprint: str) -> TriageEventOut:
    return _event(context.inbox.history(caller, project, fingerprint, limit=1).items[0])


def _filter(body: FilterBody) -> FindingFilter:
    return FindingFilter(
        states=tuple(body.state),
        severities=tuple(body.severity),
        verdicts=tuple(body.verdict),
        rule=body.rule,
        path=body.path,
        assignee=body.assignee,
        on_main=body.on_main,
        text=body.text,
    )


def _change(body: DecisionBody) -> Change:
    decision = None
    if body.state is not None:
        until = Until(body.until.date, body.until.occurrences, body.until.torch)
        decision = Decision(_VERBS[body.state], body.reason, until)
    return Change(decision, reassign="assignee" in body.model_fields_set, assignee=body.assignee)


def _out(found: ProjectFinding) -> ProjectFindingOut:
    return ProjectFindingOut(
        fingerprint=found.fingerprint,
        state=found.state,
        reason=found.reason,
        decided_by=found.decided_by_name,
        decided_at=found.decided_at,
        until=UntilOut(date=found.until.date, occurrences=found.until.occurrences, torch=found.until.torch),
        occurrences=found.occurrences,
        assignee=found.assignee_name,
        rule=found.rule,
        name=found.name,
        severity=found.severity,
        path=found.path,
        line=found.line,
        symbol=found.symbol,
        message=found.message,
        verdict=found.verdict,
        on_main=found.on_main,
        first_analysis=found.first_analysis_id,
        last_analysis=found.last_analysis_id,
        first_seen_at=found.first_seen_at,
        last_seen_at=found.last_seen_at,
        fixed_at=found.fixed_at,
    )


def _event(event: TriageEvent) -> TriageEventOut:
    return TriageEventOut(
        id=event.id,
        at=event.at,
        actor=event.actor_name,
        actor_kind=event.actor_kind,
        kind=event.kind,
        before=event.before,
        after=event.after,
        text=event.text,
        details=dict(event.details),
    )
