"""The inbox: what is to be decided about, in one project or in all, and the forms by which it is decided.

Every form is a plain one. Findings are named `project:fingerprint`, so that one form reaches over several projects.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from api.pages.team.desk import Acting, Desk, Looking, sentence
from api.pages.team.people import assignable
from api.pages.team.questions import Question, asked, choices
from services.accounts.access import Permission
from services.accounts.errors import PermissionDeniedError
from services.projects.errors import ProjectNotFoundError
from services.projects.service import ProjectView
from services.triage.decisions import Change, Decision
from services.triage.errors import FindingNotFoundError, InvalidDecisionError
from services.triage.model import ProjectFinding, Until

router = APIRouter()

_A_PAGE: Final = 40
_MOST: Final = 200
_FINDING: Final = re.compile(r"([0-9a-z]{20,40}):([0-9A-Za-z_-]{1,80})", re.ASCII)
_DONE: Final = {
    "accept": "accepted",
    "false_positive": "called a false positive",
    "reopen": "open again",
    "assign": "assigned",
}
_Cursor = Annotated[str | None, Query(max_length=60)]
_Asked = Annotated[Question, Depends(asked)]


class Wanted(BaseModel):
    """What a form of decisions says. The fields that its button has no use for are passed over."""

    model_config = ConfigDict(extra="ignore")

    finding: list[str] = Field(default=[], max_length=_MOST)
    action: Literal["accept", "false_positive", "reopen", "assign"] = "accept"
    reason: str = Field(default="", max_length=5000)
    until_date: date | Literal[""] = ""
    until_occurrences: int | Literal[""] = ""
    until_torch: str = Field(default="", max_length=60)
    assignee: str = Field(default="", max_length=100)
    goal: str = Field(default="/inbox", alias="next", max_length=2000)

    @property
    def until(self) -> Until:
        """What ends an acceptance: a day is over when the next one begins, in UTC."""
        if self.action != "accept":
            return Until()
        day = None
        if self.until_date:
            day = datetime.combine(self.until_date, time(), UTC) + timedelta(days=1)
        return Until(day, self.until_occurrences or None, self.until_torch.strip() or None)

    @property
    def change(self) -> Change:
        """The same for the use case."""
        if self.action == "assign":
            return Change(reassign=True, assignee=self.assignee or None)
        return Change(Decision(self.action, self.reason, self.until))


_Wanted = Annotated[Wanted, Form()]


@router.get("/inbox")
def inbox_page(desk: Looking, question: _Asked, before: _Cursor = None) -> Response:
    """The findings of all projects that the visitor may read."""
    return _inbox(desk, None, question, before)


@router.get("/projects/{project_id}/findings")
def project_findings_page(desk: Looking, project_id: str, question: _Asked, before: _Cursor = None) -> Response:
    """The findings of one project."""
    return _inbox(desk, desk.context.projects.get(desk.subject, project_id), question, before)


@router.get("/projects/{project_id}/findings/{fingerprint}")
def finding_address(desk: Looking, project_id: str, fingerprint: str) -> Response:
    """The lasting address of a finding: leads to the newest analysis that has it."""
    finding = desk.context.inbox.finding(desk.subject, project_id, fingerprint)
    if finding.last_analysis_id is None:
        raise FindingNotFoundError("the analyses that had this finding are not kept any more", fingerprint=fingerprint)
    return RedirectResponse(f"/analyses/{finding.last_analysis_id}/findings/{finding.fingerprint}", status_code=303)


@router.post("/findings/decide")
def decide(desk: Acting, wanted: _Wanted) -> Response:
    """Decide about the findings that were selected, in whichever projects they are."""
    return _obey(desk, wanted, wanted.finding)


@router.post("/projects/{project_id}/findings/{fingerprint}/decide")
def decide_one(desk: Acting, project_id: str, fingerprint: str, wanted: _Wanted) -> Response:
    """Decide about one finding."""
    project = desk.context.projects.get(desk.subject, project_id)
    return _obey(desk, wanted, [f"{project.id}:{fingerprint}"])


@router.post("/projects/{project_id}/findings/{fingerprint}/assign")
def assign_one(desk: Acting, project_id: str, fingerprint: str, wanted: _Wanted) -> Response:
    """Give one finding to somebody."""
    project = desk.context.projects.get(desk.subject, project_id)
    return _obey(desk, wanted.model_copy(update={"action": "assign"}), [f"{project.id}:{fingerprint}"])


@router.post("/projects/{project_id}/findings/{fingerprint}/comments")
def comment(
    desk: Acting,
    project_id: str,
    fingerprint: str,
    text: Annotated[str, Form(max_length=5000)] = "",
    goal: Annotated[str, Form(alias="next", max_length=2000)] = "/inbox",
) -> Response:
    """Say something about a finding."""
    try:
        desk.context.triage.comment(desk.subject, project_id, fingerprint, text)
    except InvalidDecisionError as error:
        return desk.done(_own(goal), sentence(error), tone="bad")
    return desk.done(_own(goal), "Your comment is there.")


def _inbox(desk: Desk, project: ProjectView | None, question: Question, before: str | None) -> Response:
    context, subject = desk.context, desk.subject
    project_id = None if project is None else project.id
    path = "/inbox" if project is None else f"/projects/{project.id}/findings"
    wanted = question.filter()
    page = context.inbox.findings(subject, project_id, wanted, limit=_A_PAGE, cursor=before)
    facets = context.inbox.facets(subject, project_id, wanted)
    projects = {project.id: project} if project is not None else _projects(desk, page.items)
    decidable = {key for key, view in projects.items() if Permission.TRIAGE in view.permissions}
    return desk.page(
        "inbox.html",
        section="inbox" if project is None else "projects",
        current=path,
        path=path,
        project=project,
        names={key: view.name for key, view in projects.items()},
        question=question,
        choices=choices(question, facets),
        page=page,
        first=before is None,
        total=facets.total,
        everything=sum(facets.states.values()),
        decidable=decidable,
        may_decide=bool(decidable),
        may_configure=project is not None and Permission.CONFIGURE in project.permissions,
        people=assignable(context, subject, decidable),
    )


def _projects(desk: Desk, findings: Iterable[ProjectFinding]) -> dict[str, ProjectView]:
    """Those that the findings of a page belong to."""
    return desk.context.projects.of_ids(desk.subject, {finding.project_id for finding in findings})


def _obey(desk: Desk, wanted: Wanted, named: list[str]) -> Response:
    """Decide project by project. What a decision makes no sense for is left as it is, and said to be."""
    chosen = _by_project(named)
    goal = _own(wanted.goal)
    if not chosen:
        return desk.done(goal, "Nothing is selected: tick the findings that you mean.", tone="warn")
    projects = desk.context.projects.of_ids(desk.subject, chosen)
    for project_id in chosen:  # before anything is done: nobody's form is obeyed as far as they may
        if project_id not in projects:
            raise ProjectNotFoundError(f"there is no project {project_id!r}", project=project_id)
        if Permission.TRIAGE not in projects[project_id].permissions:
            raise PermissionDeniedError("you may not decide about findings of this project", permission="triage")
    changed: list[str] = []
    left = missing = 0
    try:
        for project_id, fingerprints in chosen.items():
            made = desk.context.triage.change_many(desk.subject, project_id, wanted.change, fingerprints=fingerprints)
            changed += [f"{project_id}:{fingerprint}" for fingerprint in made.changed]
            left += len(made.unchanged)
            missing += len(made.missing)
    except InvalidDecisionError as error:
        # Each project is decided about by itself: what was done before is said, and can be undone.
        before = f" Before that, {_told(wanted.action, len(changed), left, missing)}" if changed else ""
        return desk.done(goal, sentence(error) + before, undo=_undone(wanted, changed), tone="bad")
    undo = _undone(wanted, changed)
    return desk.done(
        goal, _told(wanted.action, len(changed), left, missing), undo=undo, tone="good" if changed else "warn"
    )


def _undone(wanted: Wanted, changed: list[str]) -> tuple[str, ...]:
    return tuple(changed) if wanted.action in {"accept", "false_positive"} else ()


def _by_project(named: Iterable[str]) -> dict[str, list[str]]:
    """The fingerprints by project; what has no such form was made by nobody's page and is passed over."""
    chosen: dict[str, list[str]] = defaultdict(list)
    for name in named:
        found = _FINDING.fullmatch(name)
        if found is not None:
            chosen[found[1]].append(found[2])
    return chosen


def _told(action: str, changed: int, left: int, missing: int) -> str:
    parts = [f"{_findings(changed)} {'is' if changed == 1 else 'are'} {_DONE[action]}"]
    if left:
        parts.append(f"{_findings(left)} {'stays' if left == 1 else 'stay'} as before")
    if missing:
        parts.append(f"{_findings(missing)} {'is' if missing == 1 else 'are'} not there any more")
    return "; ".join(parts) + "."


def _findings(number: int) -> str:
    return "1 finding" if number == 1 else f"{number} findings"


def _own(address: str) -> str:
    """A path of our own, so that a form never leads to another site."""
    parts = urlsplit(address)
    harmless = address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.netloc
    return address if harmless and "\\" not in address and address.isprintable() else "/inbox"
