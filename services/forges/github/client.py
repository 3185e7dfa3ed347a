"""`ForgeClient` over GitHub's REST interface, and over GraphQL for conversations at lines."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from services.forges.clocks import Clock
from services.forges.errors import ForgeNotFoundError, ForgeRejectedError, RateLimitedError, UnreadableAnswerError
from services.forges.github.graphql import MINIMISE_COMMENT, RESOLVE_THREAD, REVIEW_THREADS, UNRESOLVE_THREAD
from services.forges.github.models import (
    AppAnswer,
    Branch,
    CheckRunAnswer,
    CheckRuns,
    CollaboratorPermission,
    Comparison,
    File,
    GraphqlAnswer,
    IssueComment,
    Pull,
    Review,
    Sarif,
    Thread,
    ThreadComment,
    ThreadsAnswer,
)
from services.forges.github.reading import changed_file, check_run, person, person_of_graphql, pull_request
from services.forges.github.refusals import graphql_refusal
from services.forges.github.writing import check, review_comment, timestamp
from services.forges.manners import Manners
from services.forges.transport import Answer, Transport, validated
from services.forges.values import (
    ChangedFile,
    CheckReport,
    CheckRun,
    CloneAccess,
    Comment,
    ForgeFeatures,
    MinimiseReason,
    Permission,
    Person,
    PostedReview,
    PullRequest,
    ReviewDraft,
    ReviewThread,
    SarifUpload,
)

_FEATURES: Final = ForgeFeatures(
    annotations=True, annotations_at_once=50, actions=True, minimise=True, sarif=True, atomic_review=True
)
_FULL_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,100}/[A-Za-z0-9_.\-]{1,100}")
_PERMISSIONS: Final = {"admin": Permission.ADMIN, "write": Permission.WRITE, "read": Permission.READ}
_LARGEST_SARIF: Final = 10 * 10**6
_MOST_THREAD_PAGES: Final = 40
_TOO_LARGE: Final = 413


class GithubClient:
    """GitHub, seen from one installation. Made by `GithubApp.client`."""

    def __init__(
        self,
        transport: Transport,
        *,
        application: Callable[[], AppAnswer],
        clone_token: Callable[[], str],
        graphql_url: str,
        web_url: str,
        clock: Clock,
        manners: Manners,
    ) -> None:
        self._transport = transport
        self._application = application
        self._clone_token = clone_token
        self._graphql_url = graphql_url
        self._web_url = web_url
        self._clock = clock
        self._manners = manners

    @property
    def features(self) -> ForgeFeatures:
        """What GitHub can do."""
        return _FEATURES

    def identity(self) -> Person:
        application = self._application()
        return Person(identifier=str(application.id), login=f"{application.slug}[bot]", is_bot=True)

    def close(self) -> None:
        self._transport.close()

    # Pull requests

    def pull_request(self, repository: str, number: int) -> PullRequest:
        return pull_request(self._transport.get(f"{_root(repository)}/pulls/{number}").one(Pull))

    def merge_base(self, repository: str, base: str, head: str) -> str:
        between = f"{quote(base, safe='')}...{quote(head, safe='')}"
        # Of the commits between them none is wanted; the least that can be asked for is one.
        answer = self._transport.get(f"{_root(repository)}/compare/{between}", {"per_page": 1})
        return answer.one(Comparison).merge_base_commit.sha

    def branch_tip(self, repository: str, branch: str) -> str:
        return self._transport.get(f"{_root(repository)}/branches/{quote(branch, safe='')}").one(Branch).commit.sha

    def changed_files(self, repository: str, number: int) -> tuple[ChangedFile, ...]:
        files: list[ChangedFile] = []
        for page in self._transport.pages(f"{_root(repository)}/pulls/{number}/files"):
            files += [changed_file(file) for file in page.many(File)]
        return tuple(files)

    def permission(self, repository: str, person: Person) -> Permission:
        path = f"{_root(repository)}/collaborators/{quote(person.login, safe='')}/permission"
        try:
            answer = self._transport.get(path).one(CollaboratorPermission)
        except ForgeNotFoundError:
            return Permission.NONE
        return _PERMISSIONS.get(answer.permission, Permission.NONE)

    # Checks

    def create_check(self, repository: str, report: CheckReport) -> CheckRun:
        payload = {"head_sha": report.head_sha, **check(report)}
        return check_run(self._transport.write("POST", f"{_root(repository)}/check-runs", payload).one(CheckRunAnswer))

    def update_check(self, repository: str, identifier: str, report: CheckReport) -> CheckRun:
        path = f"{_root(repository)}/check-runs/{int(identifier)}"
        return check_run(self._transport.write("PATCH", path, check(report)).one(CheckRunAnswer))

    def find_check(self, repository: str, *, head_sha: str, name: str, external_id: str) -> CheckRun | None:
        path = f"{_root(repository)}/commits/{quote(head_sha, safe='')}/check-runs"
        asked: dict[str, str | int] = {"check_name": name, "filter": "all", "app_id": self._application().id}
        for page in self._transport.pages(path, asked):
            for run in page.one(CheckRuns).check_runs:
                if run.external_id == external_id:
                    return check_run(run)
        return None

    # Comments

    def list_comments(self, repository: str, number: int) -> Iterator[Comment]:
        for page in self._transport.pages(f"{_root(repository)}/issues/{number}/comments"):
            for comment in page.many(IssueComment):
                yield self._comment(comment)

    def create_comment(self, repository: str, number: int, body: str) -> Comment:
        path = f"{_root(repository)}/issues/{number}/comments"
        return self._comment(self._transport.write("POST", path, {"body": body}).one(IssueComment))

    def edit_comment(self, repository: str, number: int, identifier: str, body: str) -> Comment:  # noqa: ARG002
        path = f"{_root(repository)}/issues/comments/{int(identifier)}"
        return self._comment(self._transport.write("PATCH", path, {"body": body}).one(IssueComment))

    # Reviews

    def create_review(self, repository: str, number: int, draft: ReviewDraft) -> PostedReview:
        payload = {
            "commit_id": draft.commit_sha,
            "event": "COMMENT",
            "body": draft.body,
            "comments": [review_comment(comment) for comment in draft.comments],
        }
        answer = self._transport.write("POST", f"{_root(repository)}/pulls/{number}/reviews", payload)
        return PostedReview(identifier=str(answer.one(Review).id))

    def list_threads(self, repository: str, number: int) -> tuple[ReviewThread, ...]:
        owner, name = _root(repository).removeprefix("/repos/").split("/")
        asked: dict[str, object] = {"owner": owner, "name": name, "number": number, "after": None}
        found: list[ReviewThread] = []
        for _ in range(_MOST_THREAD_PAGES):
            answer = self._graphql(REVIEW_THREADS, asked, is_write=False)
            pull = validated(ThreadsAnswer, answer)
            if pull.repository is None or pull.repository.pull is None:
                raise ForgeNotFoundError(f"GitHub has no pull request {number} there, or we may not see it")
            threads = pull.repository.pull.threads
            found += [self._thread(thread) for thread in threads.nodes if thread is not None]
            if not threads.page.more:
                return tuple(found)
            asked["after"] = threads.page.cursor
        raise UnreadableAnswerError("the pull request has more than 2,000 conversations", outcome_unknown=False)

    def resolve_thread(self, repository: str, number: int, identifier: str) -> None:  # noqa: ARG002
        self._graphql(RESOLVE_THREAD, {"thread": identifier}, is_write=True)

    def unresolve_thread(self, repository: str, number: int, identifier: str) -> None:  # noqa: ARG002
        self._graphql(UNRESOLVE_THREAD, {"thread": identifier}, is_write=True)

    def minimise_comment(self, node_id: str, reason: MinimiseReason) -> None:
        self._graphql(MINIMISE_COMMENT, {"subject": node_id, "classifier": reason.value}, is_write=True)

    # Uploads and clones

    def upload_sarif(self, repository: str, upload: SarifUpload) -> str:
        packed = gzip.compress(upload.sarif, mtime=0)
        if len(packed) > _LARGEST_SARIF:
            raise ForgeRejectedError(
                f"the SARIF log has {len(packed):,} bytes when packed, and GitHub takes 10,000,000", status=_TOO_LARGE
            )
        payload: dict[str, object] = {
            "commit_sha": upload.commit_sha,
            "ref": upload.ref,
            "sarif": base64.b64encode(packed).decode(),
        }
        if upload.started_at is not None:
            payload["started_at"] = timestamp(upload.started_at)
        return self._transport.write("POST", f"{_root(repository)}/code-scanning/sarifs", payload).one(Sarif).id

    def clone_access(self, repository: str, number: int | None = None) -> CloneAccess:
        name = _root(repository).removeprefix("/repos/")
        secret = base64.b64encode(f"x-access-token:{self._clone_token()}".encode()).decode()
        return CloneAccess(
            url=f"{self._web_url}/{name}.git",
            pull_request_ref=None if number is None else f"refs/pull/{number}/head",
            headers={"Authorization": f"Basic {secret}"},
        )

    # What they share

    def _graphql(self, query: str, variables: dict[str, object], *, is_write: bool) -> dict[str, object]:
        payload = {"query": query, "variables": variables}
        answer: Answer = (
            self._transport.write("POST", self._graphql_url, payload)
            if is_write
            else self._transport.ask(self._graphql_url, payload)
        )
        said = answer.one(GraphqlAnswer)
        if said.errors:
            error = graphql_refusal(
                said.errors,
                headers=answer.headers,
                now=self._clock.now(),
                patience=self._manners.patience(),
                is_write=is_write,
            )
            if isinstance(error, RateLimitedError):
                self._manners.limited(error)
            raise error
        if said.data is None:
            raise UnreadableAnswerError("GitHub's answer holds no data", outcome_unknown=is_write)
        return said.data

    def _comment(self, comment: IssueComment) -> Comment:
        author = person(comment.user)
        return Comment(
            identifier=str(comment.id),
            node_id=comment.node_id,
            author=author,
            by_us=self._is_us(author),
            body=comment.body or "",
            created_at=comment.created_at,
            updated_at=comment.updated_at,
            url=comment.html_url,
        )

    def _thread(self, thread: Thread) -> ReviewThread:
        comments = tuple(self._thread_comment(comment) for comment in thread.comments.nodes if comment is not None)
        return ReviewThread(
            identifier=thread.id,
            path=thread.path,
            line=thread.line,
            is_resolved=thread.is_resolved,
            is_outdated=thread.is_outdated,
            comments=comments,
            complete=len(comments) == thread.comments.total,
        )

    def _thread_comment(self, comment: ThreadComment) -> Comment:
        author = person_of_graphql(comment.author)
        return Comment(
            identifier=str(comment.number or ""),
            node_id=comment.id,
            author=author,
            by_us=self._is_us(author),
            body=comment.body,
            created_at=comment.created_at,
            updated_at=comment.updated_at,
            url=comment.url,
        )

    def _is_us(self, author: Person) -> bool:
        """Whether the author is our application: no person can be called `…[bot]`, nor be a bot to GitHub."""
        return author.is_bot and author.login.lower() == f"{self._application().slug}[bot]".lower()


def _root(repository: str) -> str:
    if not _FULL_NAME.fullmatch(repository) or any(part in {".", ".."} for part in repository.split("/")):
        raise ForgeNotFoundError("GitHub has no repository of such a name: it is owner/name")
    return f"/repos/{repository}"
