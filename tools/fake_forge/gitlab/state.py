"""What the fake GitLab remembers: projects, merge requests, discussions with their notes, commit statuses."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from tools.fake_forge.diffs import FileDiff, moved_line
from tools.fake_forge.git import GitRepository
from tools.fake_forge.world import World

GUEST, REPORTER, DEVELOPER, MAINTAINER, OWNER = 10, 20, 30, 40, 50


@dataclass(eq=False)
class User:
    id: int
    username: str
    is_bot: bool = False


@dataclass(eq=False, repr=False)
class Project:
    id: int
    path: str  # with all of its groups
    git: GitRepository
    private: bool
    default_branch: str
    created_at: datetime
    fork_of: Project | None = None
    members: dict[str, int] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    merge_requests: dict[int, MergeRequest] = field(default_factory=dict)
    statuses: list[Status] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def level(self, username: str) -> int:
        """A member's access level, 0 for others."""
        return self.members.get(username, 0)

    def __repr__(self) -> str:
        return f"<Project {self.id} {self.path}>"


@dataclass(eq=False, repr=False)
class MergeRequest:
    id: int
    iid: int
    project: Project
    source: Project
    source_branch: str
    target_branch: str
    start_sha: str  # the target branch, when the head last moved
    head_sha: str
    title: str
    author: User
    draft: bool
    created_at: datetime
    updated_at: datetime
    state: Literal["opened", "closed", "merged"] = "opened"
    merge_commit: str | None = None
    discussions: list[Discussion] = field(default_factory=list)

    @property
    def base_sha(self) -> str:
        """Where it left its target."""
        return self.project.git.merge_base(self.start_sha, self.head_sha) or self.start_sha

    def files(self) -> list[FileDiff]:
        return self.project.git.diff(self.base_sha, self.head_sha)

    def notes(self) -> list[Note]:
        """All of them, oldest first."""
        return sorted((note for each in self.discussions for note in each.notes), key=lambda note: note.id)

    def __repr__(self) -> str:
        return f"<MergeRequest {self.project.path}!{self.iid} {self.state} {self.head_sha}>"


@dataclass(eq=False, repr=False)
class Discussion:
    """One thread; a comment that stands alone is one with `individual` set, which can't be resolved."""

    merge_request: MergeRequest
    individual: bool
    position: dict[str, Any] | None = None
    resolved_by: User | None = None
    notes: list[Note] = field(default_factory=list)
    id: str = field(default_factory=lambda: hashlib.sha1(secrets.token_bytes(16), usedforsecurity=False).hexdigest())

    def follow(self) -> None:
        """Move the position along with an unchanged line; that of a changed one stays where it was: outdated."""
        position, merge_request = self.position, self.merge_request
        if position is None or position.get("new_line") is None:
            return
        git = merge_request.project.git
        moves = git.line_moves(position["new_path"], position["head_sha"], merge_request.head_sha)
        line = None if moves is None else moved_line(moves, position["new_line"])
        shown = next((each for each in merge_request.files() if each.path == position["new_path"]), None)
        if line is None or shown is None or (hunk := shown.hunk(line, "RIGHT")) is None:
            return
        (there,) = (each for each in hunk.lines if each.right == line)
        shas = {"base_sha": merge_request.base_sha, "start_sha": merge_request.start_sha}
        self.position = position | shas | {"head_sha": merge_request.head_sha, "new_line": line, "old_line": there.left}

    def __repr__(self) -> str:
        return f"<Discussion {self.id[:8]} {len(self.notes)} notes, resolved by {self.resolved_by}>"


@dataclass(eq=False, repr=False)
class Note:
    id: int
    discussion: Discussion
    author: User
    body: str
    created_at: datetime
    updated_at: datetime
    system: bool = False
    awards: list[tuple[int, User, str]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Note {self.id} {self.body!r}>"


@dataclass(eq=False)
class Status:
    id: int
    sha: str
    ref: str
    name: str
    state: str
    description: str | None
    target_url: str | None
    coverage: float | None
    created_at: datetime
    history: list[str] = field(default_factory=list)


class GitLabState:
    """All of it. The lock, the clock and the log of requests are the forge's, shared with the fake GitHub."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.users: dict[str, User] = {}
        self.projects: dict[int, Project] = {}
        self.bot = self.user("gradproof-bot", is_bot=True)
        self.tokens: dict[str, datetime | None] = {}  # of the bot; with their end

    def user(self, username: str, *, is_bot: bool = False) -> User:
        """The user of that name, made when first heard of."""
        if username not in self.users:
            self.users[username] = User(self.world.new_id("gitlab user", 101), username, is_bot)
        return self.users[username]

    def project(self, name: str) -> Project | None:
        """By number or by path."""
        if name.isdigit():
            return self.projects.get(int(name))
        return next((each for each in self.projects.values() if each.path == name), None)

    def find_discussion(self, merge_request: MergeRequest, name: str) -> Discussion | None:
        return next((each for each in merge_request.discussions if each.id == name), None)


# How GitLab's state machine names the ways between the states of a commit status.
STATUS_EVENTS: Final = {
    "pending": "enqueue",
    "running": "run",
    "success": "success",
    "failed": "drop",
    "canceled": "cancel",
    "skipped": "skip",
}
