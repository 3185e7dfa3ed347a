"""The bodies about people, projects and what they leave behind, with the examples that the OpenAPI document shows.

This module must not decide anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from api.schemas import EXAMPLE_ID, Body, ProjectName
from services.projects.settings import ProjectSettings

_MOMENT = "2026-11-29T12:00:00Z"
_OTHER_ID = "01jdzq5v0c9m3x8t7k2w4r6y2h"

RoleName = Literal["viewer", "triager", "maintainer", "admin"]
PermissionName = Literal["read", "submit", "triage", "configure", "administer"]
ScopeName = Literal["read", "submit", "triage", "admin"]
NameCursor = Annotated[str, StringConstraints(max_length=150)]
Branch = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]

PROJECT_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "name": "acme/vision",
    "organisation": "acme",
    "repository_url": "https://github.com/example/vision",
    "default_branch": "main",
    "settings": {
        "modes": {"GP305": "monitor"},
        "known_rules": None,
        "gate": {"no_failing_check": None, "no_new_error": None, "no_new_warning": True, "complete": None},
        "bot": {
            "enabled": True, "blocks": False, "summary": "findings", "inline": True, "inline_most": 30,
            "suggestions": True, "annotations": True, "sarif": False, "drafts": False, "debounce_s": 20,
            "pause_after_pushes": 30,
        },
        "assign": "owner",
    },
    "baseline": _OTHER_ID,
    "created_at": _MOMENT,
    "archived_at": None,
    "permissions": ["administer", "configure", "read", "submit", "triage"],
    "links": {"self": f"/api/v1/projects/{EXAMPLE_ID}", "page": f"/projects/{EXAMPLE_ID}"},
}  # fmt: skip
ORGANISATION_EXAMPLE: dict[str, Any] = {
    "name": "acme",
    "title": "Acme Research",
    "created_at": _MOMENT,
    "permissions": ["read", "submit", "triage"],
}
MEMBER_EXAMPLE: dict[str, Any] = {
    "user": "ada", "display_name": "Ada Lovelace", "role": "maintainer", "since": _MOMENT, "disabled": False,
}  # fmt: skip
TOKEN_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "name": "CI of vision",
    "last_four": "x7Qa",
    "scopes": ["submit"],
    "of": "project",
    "project": _OTHER_ID,
    "created_at": _MOMENT,
    "expires_at": "2027-02-27T12:00:00Z",
    "revoked_at": None,
    "last_used_at": None,
}
FRESH_TOKEN_EXAMPLE: dict[str, Any] = {**TOKEN_EXAMPLE, "token": "gp_api_…"}
AUDIT_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "at": _MOMENT,
    "actor": {"kind": "user", "id": _OTHER_ID, "name": "ada"},
    "action": "member.change",
    "object": {"kind": "user", "id": _OTHER_ID},
    "organisation": _OTHER_ID,
    "project": None,
    "project_name": None,
    "details": {"name": "grace", "from": "viewer", "to": "triager"},
}
HOOK_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "url": "https://chat.example.org/hooks/vision",
    "events": ["analysis.finished"],
    "secret": "whsec_…",
    "created_at": _MOMENT,
    "disabled_at": None,
}
DELIVERY_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "event": "analysis.finished",
    "analysis": _OTHER_ID,
    "created_at": _MOMENT,
    "attempts": 1,
    "status": 204,
    "reason": None,
    "delivered_at": "2026-11-29T12:00:01Z",
    "next_at": None,
}
SHARE_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "analysis": _OTHER_ID,
    "address": "http://127.0.0.1:8000/shared/…",
    "created_by": "ada",
    "created_at": _MOMENT,
    "expires_at": "2026-12-06T12:00:00Z",
    "revoked_at": None,
}


class ProjectLinks(BaseModel):
    """Where to go on from a project."""

    self: str
    page: str


class ProjectOut(BaseModel):
    """A project, and what the caller may do in it."""

    id: str
    name: str = Field(description="its full name: `organisation/name`, bare in the default organisation")
    organisation: str
    repository_url: str | None
    default_branch: str | None
    settings: ProjectSettings
    baseline: str | None = Field(description="the newest settled analysis of the main line")
    created_at: datetime
    archived_at: datetime | None
    permissions: list[PermissionName]
    links: ProjectLinks


class ProjectIn(Body):
    """A project to make."""

    name: ProjectName = Field(description="`organisation/name`, or a bare name")
    repository_url: Url | None = Field(default=None, description="https only")
    default_branch: Branch | None = None


class ProjectPatch(Body):
    """What to change; what is left out stays. `settings` are replaced as a whole."""

    name: ProjectName | None = None
    repository_url: Url | None = None
    default_branch: Branch | None = None
    settings: dict[str, Any] | None = Field(default=None, description="as `GET` shows them; defaults may be left out")
    archived: bool | None = None


class OrganisationOut(BaseModel):
    """An organisation, and what the caller may do in all of its projects."""

    name: str
    title: str
    created_at: datetime
    permissions: list[PermissionName]


class OrganisationIn(Body):
    """An organisation to make."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=40)] = Field(description="as full names begin")
    title: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None


class MemberOut(BaseModel):
    """Somebody who belongs to an organisation or a project."""

    user: str
    display_name: str
    role: RoleName
    since: datetime
    disabled: bool


class MemberIn(Body):
    """What somebody is to be."""

    role: RoleName


class TokenOut(BaseModel):
    """A token without its text."""

    id: str
    name: str
    last_four: str
    scopes: list[ScopeName]
    of: Literal["user", "project", "installation"]
    project: str | None = Field(description="the id of the one project that it is for")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class FreshToken(TokenOut):
    """A token just made. `token` is shown this once."""

    token: str


class TokenIn(Body):
    """A token to make: of the caller's own user, unless `project` or `installation` say otherwise."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    scope: ScopeName = "submit"
    days: int | None = Field(default=90, ge=1, le=3650, description="days until it expires; null: never")
    project: ProjectName | None = Field(default=None, description="id or name of the one project that it is for")
    installation: bool = Field(default=False, description="everywhere; for operators")


class Actor(BaseModel):
    """Who did something; the name is that of the time."""

    kind: str
    id: str
    name: str


class Object(BaseModel):
    """What it was done to."""

    kind: str
    id: str


class AuditOut(BaseModel):
    """A line of the audit log."""

    id: str
    at: datetime
    actor: Actor
    action: str
    object: Object
    organisation: str | None
    project: str | None
    project_name: str | None
    details: dict[str, Any]


class HookIn(Body):
    """An address to tell that an analysis of the project has ended."""

    url: Url = Field(description="https only, on the public Internet or a trusted network")


class HookPatch(Body):
    """Whether a hook is to be told nothing for now."""

    disabled: bool


class HookOut(BaseModel):
    """An outgoing hook with the secret that its calls are signed with."""

    id: str
    url: str
    events: list[str]
    secret: str
    created_at: datetime
    disabled_at: datetime | None


class DeliveryOut(BaseModel):
    """One call of a hook, with all its attempts."""

    id: str
    event: str
    analysis: str | None
    created_at: datetime
    attempts: int
    status: int | None = Field(description="what the other side answered last")
    reason: str | None = Field(description="why it was not taken")
    delivered_at: datetime | None
    next_at: datetime | None = Field(description="when it is tried again; null once it is over")


class ShareIn(Body):
    """For how long to share an analysis."""

    days: int = Field(default=7, ge=1, le=90)


class ShareOut(BaseModel):
    """A link that shows one analysis, read only, to whoever has it."""

    id: str
    analysis: str
    address: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
