"""`ForgeClient` over GitLab's REST interface.

What GitLab lacks is stood in for: a check run is a commit status (no annotations, no buttons), a review is a note and
a discussion for each line, written one by one. Folding comments away and taking SARIF it can't: `features` says so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from services.forges.errors import ForgeNotFoundError, ForgeRejectedError, NotSupportedByForgeError
from services.forges.gitlab import reading
from services.forges.gitlab.models import (
    Branch,
    Commit,
    Diff,
    DiffRefs,
    Discussion,
    Member,
    MergeRequest,
    Note,
    Status,
    User,
)
from services.forges.markdown import marker
from services.forges.transport import Transport
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
    ReviewComment,
    ReviewDraft,
    ReviewThread,
    SarifUpload,
)
from services.reports.untrusted import one_line, shorten

_FEATURES: Final = ForgeFeatures(
    annotations=False, annotations_at_once=0, actions=False, minimise=False, sarif=False, atomic_review=False
)
_LONGEST_DESCRIPTION: Final = 255
_REVIEW: Final = "review"
_REFUSED_POSITION: Final = frozenset({400, 422})


class GitlabClient:
    """GitLab, seen with one token. Made by `GitlabForge.client`."""

    def __init__(
        self, transport: Transport, *, token: Callable[[], str], web_url: str, us: Callable[[], Person]
    ) -> None:
        self._transport = transport
        self._token = token
        self._web_url = web_url
        self._us = us

    @property
    def features(self) -> ForgeFeatures:
        """What GitLab can do."""
        return _FEATURES

    def identity(self) -> Person:
        return self._us()

    def close(self) -> None:
        self._transport.close()

    # Merge requests

    def pull_request(self, repository: str, number: int) -> PullRequest:
        return reading.pull_request(self._transport.get(_request(repository, number)).one(MergeRequest))

    def merge_base(self, repository: str, base: str, head: str) -> str:
        path = f"{_project(repository)}/repository/merge_base"
        return self._transport.get(f"{path}?refs[]={quote(base, safe='')}&refs[]={quote(head, safe='')}").one(Commit).id

    def branch_tip(self, repository: str, branch: str) -> str:
        path = f"{_project(repository)}/repository/branches/{quote(branch, safe='')}"
        return self._transport.get(path).one(Branch).commit.id

    def changed_files(self, repository: str, number: int) -> tuple[ChangedFile, ...]:
        files: list[ChangedFile] = []
        for page in self._transport.pages(f"{_request(repository, number)}/diffs"):
            files += [reading.changed_file(diff) for diff in page.many(Diff)]
        return tuple(files)

    def permission(self, repository: str, person: Person) -> Permission:
        if not person.identifier:
            return Permission.NONE
        try:
            member = self._transport.get(f"{_project(repository)}/members/all/{int(person.identifier)}").one(Member)
        except ForgeNotFoundError:
            return Permission.NONE
        return reading.permission(member.access_level)

    # Commit statuses in the place of checks

    def create_check(self, repository: str, report: CheckReport) -> CheckRun:
        path = f"{_project(repository)}/statuses/{quote(report.head_sha, safe='')}"
        payload: dict[str, object] = {"state": _state(report), "name": report.name}
        if report.output is not None:
            payload["description"] = shorten(one_line(report.output.title), _LONGEST_DESCRIPTION)
        if report.details_url is not None:
            payload["target_url"] = report.details_url
        try:
            status = self._transport.write("POST", path, payload).one(Status)
        except ForgeRejectedError as error:
            # A status that is to become what it is already is refused; anything else that is refused is so rightly.
            found = self._status(repository, report.head_sha, report.name) if _is_transition(error) else None
            if found is None or found.status != payload["state"]:
                raise
            status = found
        return reading.check_run(status, report.external_id)

    def update_check(self, repository: str, identifier: str, report: CheckReport) -> CheckRun:  # noqa: ARG002
        return self.create_check(repository, report)

    def find_check(self, repository: str, *, head_sha: str, name: str, external_id: str) -> CheckRun | None:
        status = self._status(repository, head_sha, name)
        return None if status is None else reading.check_run(status, external_id)

    def _status(self, repository: str, sha: str, name: str) -> Status | None:
        path = f"{_project(repository)}/repository/commits/{quote(sha, safe='')}/statuses"
        for page in self._transport.pages(path, {"name": name}):
            for status in page.many(Status):
                if status.name == name:
                    return status
        return None

    # Notes

    def list_comments(self, repository: str, number: int) -> Iterator[Comment]:
        us = self._us()
        path = f"{_request(repository, number)}/notes"
        for page in self._transport.pages(path, {"sort": "asc", "order_by": "created_at"}):
            for note in page.many(Note):
                if not note.system and note.type is None:
                    yield reading.comment(note, us=us)

    def create_comment(self, repository: str, number: int, body: str) -> Comment:
        answer = self._transport.write("POST", f"{_request(repository, number)}/notes", {"body": body})
        return reading.comment(answer.one(Note), us=self._us())

    def edit_comment(self, repository: str, number: int, identifier: str, body: str) -> Comment:
        path = f"{_request(repository, number)}/notes/{int(identifier)}"
        return reading.comment(self._transport.write("PUT", path, {"body": body}).one(Note), us=self._us())

    # Discussions

    def create_review(self, repository: str, number: int, draft: ReviewDraft) -> PostedReview:
        refs = self._transport.get(_request(repository, number)).one(MergeRequest).diff_refs
        if refs is None or refs.head != draft.commit_sha:
            raise ForgeRejectedError("the head of the merge request is another one by now", status=409)
        identifier = None
        if draft.body:
            identifier = self._note_once(repository, number, marker(_REVIEW, draft.commit_sha), draft.body)
        rejected = tuple(comment for comment in draft.comments if not self._discuss(repository, number, comment, refs))
        return PostedReview(identifier=identifier, rejected=rejected)

    def _note_once(self, repository: str, number: int, mark: str, body: str) -> str:
        """The note over the discussions of a review: a try that was cut off among these has written it already."""
        for comment in self.list_comments(repository, number):
            if comment.by_us and comment.body.partition("\n")[0].rstrip() == mark:
                return comment.identifier
        return self.create_comment(repository, number, f"{mark}\n{body}").identifier

    def _discuss(self, repository: str, number: int, comment: ReviewComment, refs: DiffRefs) -> bool:
        """Whether the comment is there: GitLab refuses one whose line is not in its diff."""
        payload = {
            "body": comment.body,
            "position": {
                "position_type": "text",
                "base_sha": refs.base,
                "start_sha": refs.start,
                "head_sha": refs.head,
                "new_path": comment.path,
                "old_path": comment.previous_path or comment.path,
                "new_line": comment.line,
            },
        }
        try:
            self._transport.write("POST", f"{_request(repository, number)}/discussions", payload)
        except ForgeRejectedError as error:
            if error.status not in _REFUSED_POSITION:
                raise
            return False
        return True

    def list_threads(self, repository: str, number: int) -> tuple[ReviewThread, ...]:
        us = self._us()
        found: list[ReviewThread] = []
        for page in self._transport.pages(f"{_request(repository, number)}/discussions"):
            threads = (reading.thread(discussion, us=us) for discussion in page.many(Discussion))
            found += [thread for thread in threads if thread is not None]
        return tuple(found)

    def resolve_thread(self, repository: str, number: int, identifier: str) -> None:
        self._resolve(repository, number, identifier, resolved=True)

    def unresolve_thread(self, repository: str, number: int, identifier: str) -> None:
        self._resolve(repository, number, identifier, resolved=False)

    def _resolve(self, repository: str, number: int, identifier: str, *, resolved: bool) -> None:
        path = f"{_request(repository, number)}/discussions/{quote(identifier, safe='')}"
        self._transport.write("PUT", path, {"resolved": resolved})

    def minimise_comment(self, node_id: str, reason: MinimiseReason) -> None:  # noqa: ARG002
        raise NotSupportedByForgeError("GitLab can't fold comments away")

    # Uploads and clones

    def upload_sarif(self, repository: str, upload: SarifUpload) -> str:  # noqa: ARG002
        raise NotSupportedByForgeError("GitLab takes no SARIF: its Code Quality report is an artifact of a job")

    def clone_access(self, repository: str, number: int | None = None) -> CloneAccess:
        _project(repository)
        secret = base64.b64encode(f"oauth2:{self._token()}".encode()).decode()
        return CloneAccess(
            url=f"{self._web_url}/{quote(repository)}.git",
            pull_request_ref=None if number is None else f"refs/merge-requests/{number}/head",
            headers={"Authorization": f"Basic {secret}"},
        )


def whoami(transport: Transport) -> Person:
    """Whose token it is. Raises `ForgeError`."""
    user = transport.get("/user").one(User)
    return Person(identifier=str(user.id), login=user.username, is_bot=user.bot)


def _project(repository: str) -> str:
    """The path of a project, which its number or its full name, as one segment, stands for."""
    if repository.isascii() and repository.isdigit():
        return f"/projects/{repository}"
    parts = repository.split("/")
    if len(parts) < 2 or not all(parts) or any(part in {".", ".."} for part in parts):
        raise ForgeNotFoundError("GitLab has no project of such a name: it is group/name")
    return f"/projects/{quote(repository, safe='')}"


def _request(repository: str, number: int) -> str:
    return f"{_project(repository)}/merge_requests/{number}"


def _state(report: CheckReport) -> str:
    """The state of a commit status. GitLab has no neutral: advice alone is a success, and its words say the rest."""
    if report.status != "completed":
        return "running" if report.status == "in_progress" else "pending"
    return {"failure": "failed", "timed_out": "failed", "cancelled": "canceled", "skipped": "skipped"}.get(
        report.conclusion or "", "success"
    )


def _is_transition(error: ForgeRejectedError) -> bool:
    return "cannot transition" in error.message.lower()
