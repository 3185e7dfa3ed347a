"""What of GitHub's answers is used, read leniently: a new field must never break us, nor one that Enterprise lacks."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class Lenient(BaseModel):
    """Fields that are not named here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class User(Lenient):
    id: int
    login: str
    type: str = "User"


class Repository(Lenient):
    id: int
    full_name: str


class Label(Lenient):
    name: str = ""


class Tip(Lenient):
    """One end of a pull request. The repository is null when the fork was deleted."""

    sha: str
    ref: str
    repo: Repository | None = None


class Pull(Lenient):
    number: int
    title: str = ""
    state: str
    draft: bool = False
    merged_at: datetime | None = None
    user: User | None = None  # null: the account was deleted
    head: Tip
    base: Tip
    labels: list[Label] = []
    html_url: str = ""


class Commit(Lenient):
    sha: str


class Branch(Lenient):
    commit: Commit


class Comparison(Lenient):
    merge_base_commit: Commit


class File(Lenient):
    filename: str
    status: str
    sha: str | None = None
    previous_filename: str | None = None
    patch: str | None = None


class CollaboratorPermission(Lenient):
    permission: str


class Output(Lenient):
    annotations_count: int = 0


class CheckRunAnswer(Lenient):
    id: int
    name: str
    head_sha: str
    external_id: str | None = None
    status: str
    conclusion: str | None = None
    output: Output = Output()


class CheckRuns(Lenient):
    check_runs: list[CheckRunAnswer] = []


class IssueComment(Lenient):
    id: int
    node_id: str
    user: User | None = None
    body: str | None = None
    created_at: datetime
    updated_at: datetime
    html_url: str = ""


class Review(Lenient):
    id: int


class Sarif(Lenient):
    id: str


class AppAnswer(Lenient):
    id: int
    slug: str


class HookDelivery(Lenient):
    """One attempt to send us a webhook. Attempts at the same webhook have one `guid`; all but the first are a
    `redelivery`.
    """

    id: int
    guid: str
    delivered_at: AwareDatetime
    redelivery: bool = False
    status: str = ""
    status_code: int = 0

    @property
    def arrived(self) -> bool:
        """Whether we answered that we took it. GitHub's documentation goes by `status`, its log shows the code too."""
        return self.status == "OK" or 200 <= self.status_code < 300


class Token(Lenient):
    token: str = Field(repr=False)
    expires_at: datetime


class Author(Lenient):
    """Of a comment, as GraphQL says it: a bot's login has no `[bot]` there."""

    login: str
    kind: str = Field(default="User", alias="__typename")


class ThreadComment(Lenient):
    id: str
    number: int | None = Field(default=None, alias="databaseId")
    body: str = ""
    author: Author | None = None
    created_at: datetime = Field(alias="createdAt")
    updated_at: datetime = Field(alias="updatedAt")
    url: str = ""


class ThreadComments(Lenient):
    total: int = Field(alias="totalCount")
    nodes: list[ThreadComment | None]


class Thread(Lenient):
    id: str
    is_resolved: bool = Field(alias="isResolved")
    is_outdated: bool = Field(default=False, alias="isOutdated")
    path: str
    line: int | None = None
    comments: ThreadComments


class PageInfo(Lenient):
    more: bool = Field(alias="hasNextPage")
    cursor: str | None = Field(default=None, alias="endCursor")


class Threads(Lenient):
    page: PageInfo = Field(alias="pageInfo")
    nodes: list[Thread | None]


class ThreadsOfPull(Lenient):
    threads: Threads = Field(alias="reviewThreads")


class PullOfRepository(Lenient):
    pull: ThreadsOfPull | None = Field(alias="pullRequest")


class ThreadsAnswer(Lenient):
    repository: PullOfRepository | None


class GraphqlError(Lenient):
    type: str = ""
    message: str = ""


class GraphqlAnswer(Lenient):
    data: dict[str, object] | None = None
    errors: list[GraphqlError] = []
