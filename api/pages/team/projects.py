"""The pages of projects: all of them, a new one, and each with its trend, gate, analyses and pull requests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Response
from fastapi.responses import RedirectResponse

from api.pages.badges import badge_address
from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.sparklines import Sparkline, sparkline
from api.parameters import ID_PATTERN
from services.accounts.access import Permission
from services.analyses.overview import AnalysisSummary
from services.problems import GradproofError
from services.projects.service import ProjectView
from services.reports.document import Gate
from services.triage.model import Standing

router = APIRouter()

_A_PAGE: Final = 20
_ANALYSES: Final = 10
_REQUESTS: Final = 10
_SPARK: Final = 12
_TREND: Final = 40
_Cursor = Annotated[str | None, Query(pattern=ID_PATTERN)]
_Said = Annotated[str, Query(max_length=200)]
_Text = Annotated[str, Form(max_length=500)]


@dataclass(frozen=True, slots=True)
class ProjectLine:
    """A project in the list. `newest` is its newest settled analysis of the main line."""

    project: ProjectView
    newest: AnalysisSummary | None
    open: dict[str, int]
    spark: Sparkline | None
    active_at: datetime


@router.get("/")
def projects_page(desk: Looking, q: _Said = "", after: _Said = "", *, archived: bool = False) -> Response:
    """All projects that the visitor may read."""
    text = q.strip()
    page = desk.context.projects.list(
        desk.subject, text=text or None, archived=archived, cursor=after or None, limit=_A_PAGE
    )
    said = {"q": text, "archived": "true" if archived else "", "after": page.next_cursor or ""}
    return desk.page(
        "projects.html",
        section="projects",
        current="/",
        lines=_lines(desk, page.items),
        search=text,
        archived=archived,
        first=not after,
        loose=not page.items and bool(desk.context.results.summaries(desk.subject, limit=1).items),
        following=_address("/", said) if page.next_cursor else None,
        may_create=Permission.CONFIGURE in desk.subject.permissions,
        server=_server(desk),
    )


@router.get("/projects")
def projects_address() -> Response:
    """What people type."""
    return RedirectResponse("/", status_code=303)


@router.get("/projects/new")
def new_project_page(desk: Looking) -> Response:
    """The form of a new project."""
    return _new_project(desk)


@router.post("/projects/new")
def make_project(desk: Acting, name: _Text = "", repository_url: _Text = "", default_branch: _Text = "") -> Response:
    """Make a project."""
    said = {"name": name.strip(), "repository_url": repository_url.strip(), "default_branch": default_branch.strip()}
    try:
        project = desk.context.projects.create(
            desk.subject,
            said["name"],
            repository_url=said["repository_url"] or None,
            default_branch=said["default_branch"] or None,
        )
    except GradproofError as error:
        return _new_project(desk, error, said)
    return desk.done(f"/projects/{project.id}", f"{project.name} is there. Its first analysis comes next.")


@router.get("/projects/{project_id}")
def project_page(desk: Looking, project_id: str, before: _Cursor = None, requests: _Cursor = None) -> Response:
    """One project: how it stands and how it came there."""
    context, subject = desk.context, desk.subject
    project = context.projects.get(subject, project_id)
    if project.id != project_id:
        return RedirectResponse(f"/projects/{project.id}", status_code=303)
    trend = context.results.trend(subject, project.id, last=_TREND)
    newest = trend[-1] if trend else None
    return desk.page(
        "project.html",
        section="projects",
        project=project,
        may_configure=Permission.CONFIGURE in project.permissions,
        newest=newest,
        before=trend[-2] if len(trend) > 1 else None,
        gate=_gate(desk, newest),
        trend=[item for item in trend if item.totals is not None],
        open=context.inbox.standings(subject, [project.id]).get(project.id, Standing(project.id)),
        analyses=context.results.summaries(subject, project=project.id, limit=_ANALYSES, cursor=before),
        first=before is None,
        requests=context.pull_requests.list(subject, project.id, before=requests, limit=_REQUESTS),
        watched=context.pull_requests.repositories(subject, project.id),
        server=_server(desk),
        badge=badge_address(context.settings, project.id),
    )


def _new_project(desk: Desk, problem: GradproofError | None = None, said: dict[str, str] | None = None) -> Response:
    values = said or {"name": "", "repository_url": "", "default_branch": ""}
    return desk.page("new_project.html", section="projects", problem=problem, **values)


def _lines(desk: Desk, projects: tuple[ProjectView, ...]) -> list[ProjectLine]:
    context, subject = desk.context, desk.subject
    ids = [project.id for project in projects]
    trends = context.results.trends(subject, ids, last=_SPARK)
    asked = context.results.last_asked(subject, ids)
    standings = context.inbox.standings(subject, ids)
    lines = []
    for project in projects:
        standing = standings.get(project.id, Standing(project.id))
        trend = trends.get(project.id, ())
        counts = [sum(item.totals.findings.open.values()) for item in trend if item.totals is not None]
        lines.append(
            ProjectLine(
                project=project,
                newest=trend[-1] if trend else None,
                open={"error": standing.error, "warning": standing.warning, "note": standing.note},
                spark=sparkline(counts, "open findings"),
                active_at=asked.get(project.id, project.created_at),
            )
        )
    return lines


def _gate(desk: Desk, newest: AnalysisSummary | None) -> Gate | None:
    """With its conditions, which lists of analyses have no need of."""
    return None if newest is None else desk.context.analyses.get(desk.subject, newest.id).gate


def _server(desk: Desk) -> str:
    return desk.context.settings.public_url.rstrip("/")


def _address(path: str, values: dict[str, str]) -> str:
    query = urlencode({key: value for key, value in values.items() if value})
    return f"{path}?{query}" if query else path
