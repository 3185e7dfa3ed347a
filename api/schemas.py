"""The bodies of requests and answers, with the examples that the OpenAPI document shows.

Parts of a report are those of `services.reports.document` themselves. This module must not decide anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.parameters import ID_PATTERN
from services.reports.document import AnalysisStatus, CheckInfo, Gate, Harness, Source

T = TypeVar("T")

EXAMPLE_ID = "01jdzq5v0c9m3x8t7k2w4r6y1h"
EXAMPLE_STATUS: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "status": "running",
    "reason": None,
    "project": "vision",
    "base": None,
    "snapshot": "sha256:" + "3f" * 32,
    "source": {"kind": "git", "url": "https://github.com/example/vision", "commit": "9f" * 20},
    "options": {"static_only": False, "checks": [], "rules": [], "ignore": []},
    "created_at": "2026-11-29T12:00:00Z",
    "started_at": "2026-11-29T12:00:00.4Z",
    "static_finished_at": "2026-11-29T12:00:01.9Z",
    "finished_at": None,
    "progress": [
        {"name": "snapshot", "done": 1, "total": 1},
        {"name": "static", "done": 1, "total": 1},
        {"name": "targets", "done": 3, "total": 9},
        {"name": "checks", "done": 8, "total": 27},
    ],
    "gate": None,
    "links": {
        "self": f"/api/v1/analyses/{EXAMPLE_ID}",
        "events": f"/api/v1/analyses/{EXAMPLE_ID}/events",
        "report": f"/api/v1/analyses/{EXAMPLE_ID}/report",
        "page": f"/analyses/{EXAMPLE_ID}",
    },
}

ProjectName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$")]
Identifier = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
Ref = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Body(BaseModel):
    """Unknown fields are refused: a typing slip must not silently change what is asked for."""

    model_config = ConfigDict(extra="forbid")


class Choices(Body):
    """What the analysis shall do; everything has a default."""

    static_only: bool = Field(default=False, description="read the code, run nothing")
    checks: tuple[str, ...] = Field(default=(), description="names of the checks to run; empty: all")
    rules: tuple[str, ...] = Field(default=(), description="ids, names or beginnings of ids of rules; empty: all")
    ignore: tuple[str, ...] = Field(default=(), description="rules to leave out of those")


class Placement(Body):
    """What the analysis belongs to."""

    project: ProjectName | None = Field(default=None, description="name of the project; made when it is new")
    base: Identifier | None = Field(default=None, description="id of an analysis to compare with")


class GitSubmission(Placement):
    """A commit of a public repository."""

    git_url: Annotated[str, StringConstraints(min_length=1, max_length=2048)] = Field(description="https only")
    ref: Ref | None = Field(default=None, description="branch, tag or commit; null: the default branch")
    base_ref: Ref | None = Field(default=None, description="ref to analyse as well and to compare with")
    options: Choices = Choices()


class Links(BaseModel):
    """Where to go on from an analysis."""

    self: str
    events: str
    report: str
    page: str
    base: str | None = Field(default=None, description="the analysis made of `base_ref`")


class Submitted(BaseModel):
    """What a submission got."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": EXAMPLE_ID, "status": "queued", "links": EXAMPLE_STATUS["links"]}],
        }
    )

    id: str
    status: AnalysisStatus
    links: Links


class StageOut(BaseModel):
    """How far a stage is; `total` grows while earlier stages find out what there is to do."""

    name: str
    done: int
    total: int


class OptionsOut(BaseModel):
    """What was chosen."""

    static_only: bool
    checks: list[str]
    rules: list[str]
    ignore: list[str]


class AnalysisOut(BaseModel):
    """An analysis as it stands."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_STATUS]})

    id: str
    status: AnalysisStatus
    reason: str | None = Field(description="why it failed, was cancelled or is partial")
    project: str | None
    base: str | None
    snapshot: str | None = Field(description="digest; null until the source was fetched")
    source: Source
    options: OptionsOut
    created_at: datetime
    started_at: datetime | None
    static_finished_at: datetime | None
    finished_at: datetime | None
    progress: list[StageOut]
    gate: Gate | None = Field(description="null until the analysis has ended")
    links: Links


class Page(BaseModel, Generic[T]):
    """Some items; `next_cursor` asks for the next ones and is null at the end."""

    items: list[T]
    next_cursor: str | None


class TargetOut(BaseModel):
    """A target without its checks, which `/checks` lists."""

    name: str
    kind: str
    path: str
    line: int
    harness: Harness | None
    not_run_reason: str | None
    checks: dict[str, int] = Field(description="how many checks by verdict")


class CheckOut(CheckInfo):
    """A check with the target that it ran on."""

    target: str


class RuleOut(BaseModel):
    """A rule and its documentation as data; `page` is the whole as Markdown."""

    id: str
    name: str
    severity: str
    confidence: str
    settled_by: list[str]
    torch_versions: str
    what_it_does: str
    why_is_this_bad: str
    faulty_example: str
    right_example: str
    fix_safety: str
    page: str


class CheckDocumentationOut(BaseModel):
    """A check and its documentation as data."""

    name: str
    summary: str
    what_it_does: str
    how_it_decides: str


class Health(BaseModel):
    """Alive."""

    status: str = Field(examples=["ok"])


class Component(BaseModel):
    """One thing that the service needs; `devices` is not needed for being ready."""

    name: str
    ok: bool
    detail: str


class Readiness(BaseModel):
    """Whether the service can take work, and what is missing if it can't."""

    ready: bool
    components: list[Component]
