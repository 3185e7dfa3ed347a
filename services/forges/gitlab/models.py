"""What of GitLab's answers is used, read leniently: versions differ in what they send."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class Lenient(BaseModel):
    """Fields that are not named here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class User(Lenient):
    id: int
    username: str
    bot: bool = False


class DiffRefs(Lenient):
    """`base` is the merge base, `start` the tip of the target branch that the diff was made against."""

    base: str = Field(alias="base_sha")
    start: str = Field(alias="start_sha")
    head: str = Field(alias="head_sha")


class MergeRequest(Lenient):
    iid: int
    title: str = ""
    state: str
    draft: bool = False
    author: User | None = None
    sha: str | None = None  # null while the branch is empty
    source_branch: str
    target_branch: str
    source_project_id: int | None = None
    target_project_id: int
    labels: list[str] = []
    web_url: str = ""
    diff_refs: DiffRefs | None = None


class Commit(Lenient):
    id: str


class Branch(Lenient):
    commit: Commit


class Diff(Lenient):
    old_path: str
    new_path: str
    diff: str = ""
    new_file: bool = False
    renamed_file: bool = False
    deleted_file: bool = False
    too_large: bool | None = False
    collapsed: bool | None = False


class Member(Lenient):
    access_level: int


class Status(Lenient):
    id: int
    sha: str
    name: str
    status: str


class Position(Lenient):
    new_path: str | None = None
    old_path: str | None = None
    new_line: int | None = None


class Note(Lenient):
    id: int
    type: str | None = None
    body: str = ""
    author: User
    system: bool = False
    resolvable: bool = False
    resolved: bool | None = False
    position: Position | None = None
    created_at: datetime
    updated_at: datetime


class Discussion(Lenient):
    id: str
    notes: list[Note]
