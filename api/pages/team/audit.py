"""The audit log of a project and of an organisation: filters, pages, and the same as a file."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from api.pages.team.audit_file import csv_lines
from api.pages.team.desk import Desk, Looking
from api.pages.team.project_settings import configurable
from api.parameters import ID_PATTERN
from services.accounts.access import Permission
from services.accounts.audit_repository import AuditFilter
from services.accounts.errors import PermissionDeniedError
from services.accounts.organisations import OrganisationView

router = APIRouter()

# What is noted, by the word before the dot.
_ACTIONS: Final = (
    ("", "any"),
    ("project", "projects"),
    ("member", "members"),
    ("token", "tokens"),
    ("hook", "hooks"),
    ("finding", "findings"),
    ("share", "shared links"),
    ("organisation", "organisations"),
    ("user", "users"),
    ("sign-in", "signing in"),
)
_Cursor = Annotated[str | None, Query(pattern=ID_PATTERN)]
_Said = Annotated[str, Query(max_length=100)]


@router.get("/projects/{project_id}/audit")
def project_audit(
    desk: Looking, project_id: str, action: _Said = "", actor: _Said = "", before: _Cursor = None
) -> Response:
    """What was done in a project; for its maintainers."""
    project = configurable(desk, project_id)
    wanted = _filter(action, actor, project_id=project.id)
    steps = [("Projects", "/"), (project.name, f"/projects/{project.id}")]
    more = {"project": project, "name": project.name, "steps": steps, "may_configure": True}
    return _page(desk, f"/projects/{project.id}/audit", wanted, before, more)


@router.get("/projects/{project_id}/audit.csv")
def project_audit_file(desk: Looking, project_id: str, action: _Said = "", actor: _Said = "") -> Response:
    """The same as a file."""
    project = configurable(desk, project_id)
    return _file(desk, _filter(action, actor, project_id=project.id), f"audit-{project.id}.csv")


@router.get("/organisations/{slug}/audit")
def organisation_audit(
    desk: Looking, slug: str, action: _Said = "", actor: _Said = "", before: _Cursor = None
) -> Response:
    """What was done in an organisation and all its projects; for its admins."""
    organisation = _administered(desk, slug)
    wanted = _filter(action, actor, organisation_id=organisation.id)
    steps = [("Organisations", "/organisations"), (organisation.name, f"/organisations/{slug}")]
    more = {"project": None, "name": organisation.name, "steps": steps, "may_configure": True}
    return _page(desk, f"/organisations/{slug}/audit", wanted, before, more)


@router.get("/organisations/{slug}/audit.csv")
def organisation_audit_file(desk: Looking, slug: str, action: _Said = "", actor: _Said = "") -> Response:
    """The same as a file."""
    organisation = _administered(desk, slug)
    return _file(desk, _filter(action, actor, organisation_id=organisation.id), f"audit-{organisation.slug}.csv")


def _administered(desk: Desk, slug: str) -> OrganisationView:
    organisation = desk.context.organisations.get(desk.subject, slug)
    if Permission.ADMINISTER not in organisation.permissions:
        raise PermissionDeniedError("the audit log is for admins of the organisation", permission="administer")
    return organisation


def _filter(action: str, actor: str, **of: str) -> AuditFilter:
    return AuditFilter(action=action or None, actor_id=actor.strip() or None, **of)


def _page(desk: Desk, path: str, wanted: AuditFilter, before: str | None, more: dict[str, Any]) -> Response:
    page = desk.context.audit.list(desk.subject, wanted=wanted, cursor=before)
    said = {"action": wanted.action or "", "actor": wanted.actor_id or ""}
    return desk.page(
        "audit.html",
        section="projects",
        path=path,
        page=page,
        first=before is None,
        following=_address(path, said | {"before": page.next_cursor}) if page.next_cursor else None,
        file=_address(f"{path}.csv", said),
        actions=_ACTIONS,
        action=said["action"],
        actor=said["actor"],
        **more,
    )


def _file(desk: Desk, wanted: AuditFilter, name: str) -> Response:
    return StreamingResponse(
        csv_lines(desk.context.audit, desk.subject, wanted),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _address(path: str, values: dict[str, str]) -> str:
    query = urlencode({key: value for key, value in values.items() if value})
    return f"{path}?{query}" if query else path
