"""What clients may send the fake GitLab, name by name: there is no published contract that could be cut down."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

LONGEST_NOTE = 1_000_000
LONGEST_DESCRIPTION = 255


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LineCode(_Body):
    line_code: str | None = None
    type: Literal["new", "old"] | None = None
    old_line: int | None = None
    new_line: int | None = None


class LineRange(_Body):
    start: LineCode
    end: LineCode


class Position(_Body):
    base_sha: str
    start_sha: str
    head_sha: str
    position_type: Literal["text", "image", "file"]
    new_path: str
    old_path: str | None = None
    new_line: int | None = None
    old_line: int | None = None
    line_range: LineRange | None = None


class NewNote(_Body):
    body: str
    internal: bool | None = None


class ChangedNote(_Body):
    body: str


class NewDiscussion(_Body):
    body: str
    position: Position | None = None
    commit_id: str | None = None


class ChangedDiscussion(_Body):
    resolved: bool


class Reply(_Body):
    body: str


class ChangedReply(_Body):
    body: str | None = None
    resolved: bool | None = None


class Award(_Body):
    name: str


class NewStatus(_Body):
    state: Literal["pending", "running", "success", "failed", "canceled", "skipped"]
    name: str = "default"
    context: str | None = None
    ref: str | None = None
    target_url: str | None = Field(default=None, max_length=255)
    description: str | None = None
    coverage: float | None = None
    pipeline_id: int | None = None
