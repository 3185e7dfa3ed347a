"""How Gradproof speaks to a forge, whichever it is.

A client belongs to one installation (GitHub) or one token (GitLab), is used by one task at a time, and keeps the rules
of good manners by itself: a second between writes, silence while a rate limit lasts, conditional reads. It repeats
reads and never a write: when `ForgeUnavailableError.outcome_unknown` is raised, the caller looks what became of it.

Every method raises the errors of `services.forges.errors`. `repository` is the full name (`owner/name`,
`group/subgroup/name`), `number` that of the pull or merge request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

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


class ForgeClient(Protocol):
    """One forge, seen from one installation."""

    @property
    def features(self) -> ForgeFeatures:
        """What this forge can do. Asks nobody."""
        ...

    def identity(self) -> Person:
        """Who our comments are by. Asked once."""
        ...

    def pull_request(self, repository: str, number: int) -> PullRequest:
        """The pull request as it is now: compare its `head_sha` before each write."""
        ...

    def merge_base(self, repository: str, base: str, head: str) -> str:
        """The commit where two commits or branches parted. `ForgeNotFoundError` if they share none."""
        ...

    def branch_tip(self, repository: str, branch: str) -> str:
        """The commit that a branch is at now. `ForgeNotFoundError` if there is no such branch."""
        ...

    def changed_files(self, repository: str, number: int) -> tuple[ChangedFile, ...]:
        """The files of a pull request (GitHub: 3,000 at most)."""
        ...

    def permission(self, repository: str, person: Person) -> Permission:
        """What a person may do there."""
        ...

    def create_check(self, repository: str, report: CheckReport) -> CheckRun:
        """Begin a check. Annotations beyond `annotations_at_once` are sent with `update_check`."""
        ...

    def update_check(self, repository: str, identifier: str, report: CheckReport) -> CheckRun:
        """Write a check anew; the annotations of `report.output` are added to those it has."""
        ...

    def find_check(self, repository: str, *, head_sha: str, name: str, external_id: str) -> CheckRun | None:
        """The check of ours with this external id, whatever became of the call that created it."""
        ...

    def list_comments(self, repository: str, number: int) -> Iterator[Comment]:
        """The comments of the conversation, oldest first, fetched page by page as they are looked at."""
        ...

    def create_comment(self, repository: str, number: int, body: str) -> Comment:
        """Write into the conversation."""
        ...

    def edit_comment(self, repository: str, number: int, identifier: str, body: str) -> Comment:
        """Change a comment of ours. `ForgeNotFoundError`: a person deleted it."""
        ...

    def create_review(self, repository: str, number: int, draft: ReviewDraft) -> PostedReview:
        """Write a review. `ForgeRejectedError` if reviews are atomic and a line is not in the diff: nothing is there.

        Where they are not, an error in the middle leaves the comments before it: list the threads before another try.
        """
        ...

    def list_threads(self, repository: str, number: int) -> tuple[ReviewThread, ...]:
        """The conversations at lines, of everybody."""
        ...

    def resolve_thread(self, repository: str, number: int, identifier: str) -> None:
        """Mark a conversation as resolved. One that is resolved stays so."""
        ...

    def unresolve_thread(self, repository: str, number: int, identifier: str) -> None:
        """Open a conversation again."""
        ...

    def minimise_comment(self, node_id: str, reason: MinimiseReason) -> None:
        """Fold a comment away. `NotSupportedByForgeError` where `features.minimise` is false."""
        ...

    def upload_sarif(self, repository: str, upload: SarifUpload) -> str:
        """Hand in a SARIF log; its id at the forge. `NotSupportedByForgeError` where `features.sarif` is false."""
        ...

    def clone_access(self, repository: str, number: int | None = None) -> CloneAccess:
        """How to fetch the repository; with a number, `pull_request_ref` is the ref of that request's head."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
