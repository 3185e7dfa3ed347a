"""What the fake GitHub remembers: accounts, repositories, pull requests, checks, comments, and what was asked of it.

State only: rules live with the operations (`github/`), what people do in `github/people.py`. Access holds `World.lock`.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from tools.fake_forge.clock import Clock
from tools.fake_forge.diffs import FileDiff, Side, moved_line
from tools.fake_forge.git import GitRepository


class _Named:
    """State refers to itself everywhere: what is printed of it is its kind, its id, and what tells it apart."""

    id: int | str
    _telling: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        told = "".join(f" {name}={getattr(self, name)!r}" for name in self._telling)
        return f"<{type(self).__name__} {self.id}{told}>"


_SECRET_HEADERS: Final = frozenset({"authorization", "private-token"})

Role = Literal["admin", "maintain", "write", "triage", "read"]


@dataclass(eq=False, repr=False)
class Account(_Named):
    _telling = ("login",)
    id: int
    login: str
    kind: Literal["User", "Organization", "Bot"]


@dataclass(eq=False, repr=False)
class Repository(_Named):
    _telling = ("full_name",)
    id: int
    owner: Account
    name: str
    git: GitRepository
    private: bool
    default_branch: str
    created_at: datetime
    fork_of: Repository | None = None
    roles: dict[str, Role] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def role(self, login: str) -> Role | None:
        """What a person may do here; on public repositories everybody may read."""
        return self.roles.get(login) or (None if self.private else "read")


@dataclass(eq=False, repr=False)
class PullRequest(_Named):
    _telling = ("full_name", "state", "head_sha")
    id: int
    number: int
    repository: Repository
    head_repository: Repository
    base: str
    head: str
    base_sha: str
    head_sha: str
    title: str
    body: str | None
    author: Account
    draft: bool
    created_at: datetime
    updated_at: datetime
    state: Literal["open", "closed"] = "open"
    locked: bool = False
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    merged_by: Account | None = None
    merge_commit: str | None = None
    comments: list[IssueComment] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)

    @property
    def is_fork(self) -> bool:
        return self.head_repository is not self.repository

    @property
    def full_name(self) -> str:
        return f"{self.repository.full_name}#{self.number}"

    def merge_base(self, head: str | None = None) -> str:
        """Where the pull request left its base; the base itself if the histories have nothing in common."""
        return self.repository.git.merge_base(self.base_sha, head or self.head_sha) or self.base_sha

    def files(self, head: str | None = None) -> list[FileDiff]:
        """What the pull request changes, as of `head`."""
        return self.repository.git.diff(self.merge_base(head), head or self.head_sha)

    def review_comments(self) -> list[ReviewComment]:
        """All of them, of submitted reviews, oldest first."""
        found = (comment for thread in self.threads for comment in thread.comments)
        return sorted((each for each in found if each.review.state != "PENDING"), key=lambda each: each.id)


@dataclass(eq=False, repr=False)
class IssueComment(_Named):
    _telling = ("body",)
    id: int
    pull: PullRequest
    author: Account
    body: str
    created_at: datetime
    updated_at: datetime
    minimized: str | None = None
    reactions: list[tuple[int, Account, str]] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Review(_Named):
    _telling = ("state",)
    id: int
    pull: PullRequest
    author: Account
    body: str
    state: Literal["PENDING", "COMMENTED", "APPROVED", "CHANGES_REQUESTED"]
    commit: str
    submitted_at: datetime


@dataclass(eq=False, repr=False)
class Thread(_Named):
    """A conversation at one place of the diff. `line` is where it is now, None once that line is gone: outdated."""

    _telling = ("path", "line", "is_resolved")
    id: int
    pull: PullRequest
    path: str
    kind: Literal["line", "file"]
    side: Side
    line: int | None
    start_line: int | None
    start_side: Side | None
    commit: str
    original_line: int | None
    original_start_line: int | None
    excerpt: str
    comments: list[ReviewComment] = field(default_factory=list)
    resolved_by: Account | None = None

    @property
    def is_resolved(self) -> bool:
        return self.resolved_by is not None

    @property
    def is_outdated(self) -> bool:
        return self.kind == "line" and self.line is None

    def follow(self, new_head: str) -> None:
        """Find the thread's lines in a new head; lines that changed or left the diff make it outdated."""
        if self.kind == "file" or self.original_line is None:
            return
        moves = self.pull.repository.git.line_moves(self.path, self.commit, new_head)
        shown = next((each for each in self.pull.files() if each.path == self.path), None)
        if self.side == "LEFT":
            self.line = self.original_line if shown and shown.hunk(self.original_line, "LEFT") else None
            return
        line = None if moves is None else moved_line(moves, self.original_line)
        self.line = line if line is not None and shown and shown.hunk(line, "RIGHT") else None
        self.start_line = None
        if self.line is not None and moves is not None and self.original_start_line is not None:
            self.start_line = moved_line(moves, self.original_start_line)


@dataclass(eq=False, repr=False)
class ReviewComment(_Named):
    _telling = ("body",)
    id: int
    thread: Thread
    review: Review
    author: Account
    body: str
    created_at: datetime
    updated_at: datetime
    reply_to: ReviewComment | None = None
    minimized: str | None = None


@dataclass(eq=False, repr=False)
class CheckSuite(_Named):
    _telling = ("head_sha",)
    id: int
    repository: Repository
    head_sha: str
    head_branch: str | None
    created_at: datetime
    runs: list[CheckRun] = field(default_factory=list)

    @property
    def status(self) -> str:
        if not self.runs:
            return "queued"
        if all(run.status == "completed" for run in self.runs):
            return "completed"
        return "queued" if all(run.status == "queued" for run in self.runs) else "in_progress"

    @property
    def conclusion(self) -> str | None:
        """The gravest of its runs' conclusions, once all are completed."""
        if self.status != "completed":
            return None
        graveness = ("action_required", "timed_out", "cancelled", "failure", "neutral", "skipped", "stale", "success")
        return min((run.conclusion or "success" for run in self.runs), key=graveness.index)


@dataclass(eq=False, repr=False)
class CheckRun(_Named):
    _telling = ("name", "status", "conclusion")
    id: int
    suite: CheckSuite
    name: str
    status: str = "queued"
    conclusion: str | None = None
    external_id: str = ""
    details_url: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, str]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)  # each status it was given, in order

    @property
    def head_sha(self) -> str:
        return self.suite.head_sha


@dataclass(eq=False, repr=False)
class Sarif(_Named):
    id: str
    repository: Repository
    commit: str
    ref: str
    document: dict[str, Any]
    errors: list[str]


@dataclass(eq=False, repr=False)
class Installation(_Named):
    id: int
    account: Account
    permissions: dict[str, str]
    created_at: datetime
    selected: set[int] | None = None  # ids of repositories; None: all of the account
    suspended_at: datetime | None = None
    suspended_by: Account | None = None
    limit: int = 5000
    used: int = 0
    resets_at: datetime | None = None

    def covers(self, repository: Repository) -> bool:
        return repository.owner is self.account and (self.selected is None or repository.id in self.selected)


@dataclass(frozen=True)
class Token:
    text: str
    installation: Installation
    expires_at: datetime
    permissions: dict[str, str]
    repositories: frozenset[int] | None

    def covers(self, repository: Repository) -> bool:
        return self.installation.covers(repository) and (
            self.repositories is None or repository.id in self.repositories
        )


@dataclass(frozen=True)
class Asked:
    """One request, as it came in and as it was answered. `status` is None where the connection was cut."""

    number: int
    at: datetime
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    operation: str | None
    status: int | None
    failure: str | None
    wrote: str | None


@dataclass(eq=False)
class AppIdentity:
    """Who the App under test is, and what it asks for."""

    app_id: int
    slug: str
    owner: Account
    bot: Account
    created_at: datetime
    permissions: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    @property
    def client_id(self) -> str:
        return f"Iv23li{self.app_id:014d}"


class World:
    """All of the state. Counters begin at different numbers, so that one kind of id is never taken for another."""

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.accounts: dict[str, Account] = {}
        self.repositories: dict[int, Repository] = {}
        self.moved: dict[str, int] = {}  # former full names of repositories
        self.installations: dict[int, Installation] = {}
        self.tokens: dict[str, Token] = {}
        self.issue_comments: dict[int, IssueComment] = {}
        self.review_comments: dict[int, ReviewComment] = {}
        self.threads: dict[int, Thread] = {}
        self.suites: dict[int, CheckSuite] = {}
        self.runs: dict[int, CheckRun] = {}
        self.sarifs: dict[str, Sarif] = {}
        self.asked: list[Asked] = []
        self.violations: list[str] = []
        self.written: Counter[str] = Counter()
        self._counters: dict[str, itertools.count[int]] = {}

    def new_id(self, kind: str, start: int) -> int:
        """The next id of that kind, beginning at `start`."""
        return next(self._counters.setdefault(kind, itertools.count(start)))

    def account(self, login: str, kind: Literal["User", "Organization", "Bot"] = "User") -> Account:
        """The account of that name, made when first heard of."""
        if login not in self.accounts:
            self.accounts[login] = Account(self.new_id("account", 1001), login, kind)
        return self.accounts[login]

    def repository(self, full_name: str) -> Repository | None:
        return next((each for each in self.repositories.values() if each.full_name == full_name), None)

    def installation_for(self, repository: Repository) -> Installation | None:
        """The installation that covers this repository."""
        return next((each for each in self.installations.values() if each.covers(repository)), None)

    def suite(self, repository: Repository, sha: str) -> CheckSuite:
        """The app's check suite of that commit, made when first asked for."""
        for suite in self.suites.values():
            if suite.repository is repository and suite.head_sha == sha:
                return suite
        branch = next((name for name, tip in repository.branches.items() if tip == sha), None)
        suite = CheckSuite(self.new_id("suite", 5001), repository, sha, branch, self.clock.now())
        self.suites[suite.id] = suite
        return suite

    def remember(
        self,
        *,
        method: str,
        path: str,
        query: dict[str, str],
        headers: Mapping[str, str],
        body: Any,
        operation: str | None,
        status: int | None,
        failure: str | None,
        wrote: str | None = None,
    ) -> None:
        """Write a request down, without the secrets in its headers."""
        kept = {name: value for name, value in headers.items() if name not in _SECRET_HEADERS}
        number = len(self.asked) + 1
        self.asked.append(
            Asked(number, self.clock.now(), method, path, query, kept, body, operation, status, failure, wrote)
        )
        if wrote:
            self.written[wrote] += 1

    def pulls_of(self, repository: Repository, sha: str) -> Iterable[PullRequest]:
        """Open pull requests that a check of this commit is told of: none for forks."""
        return [
            pull
            for pull in repository.pulls.values()
            if pull.state == "open" and pull.head_sha == sha and not pull.is_fork
        ]
