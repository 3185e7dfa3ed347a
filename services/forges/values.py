"""What is asked of a forge and what it answers, as plain values of our own that fit every forge.

Identifiers are texts, whatever the forge makes of them, so that a table can hold each. All text in them came from
outside: escape it. This module must not know HTTP or how any one forge writes things.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

PullRequestState = Literal["open", "closed", "merged"]
CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"]
AnnotationLevel = Literal["notice", "warning", "failure"]
FileStatus = Literal["added", "modified", "removed", "renamed", "unchanged"]


class Permission(StrEnum):
    """What a person may do in a repository, in ascending order."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    @property
    def may_write(self) -> bool:
        """Whether commands of this person are obeyed."""
        return self in {Permission.WRITE, Permission.ADMIN}


class MinimiseReason(StrEnum):
    """Why a comment is folded away."""

    OUTDATED = "OUTDATED"
    RESOLVED = "RESOLVED"


@dataclass(frozen=True, slots=True)
class ForgeFeatures:
    """What a forge can do, so that nobody has to ask which one it is.

    `annotations`: a check holds annotations, at most `annotations_at_once` with each call, which are added to those
    that it has. `actions`: a check has buttons. `minimise`: comments can be folded away. `sarif`: it takes uploads.
    `atomic_review`: a review is written whole or not at all; otherwise comment by comment.
    """

    annotations: bool
    annotations_at_once: int
    actions: bool
    minimise: bool
    sarif: bool
    atomic_review: bool


@dataclass(frozen=True, slots=True)
class Person:
    """Who did something: a person or an application. `login` is how the forge names it today."""

    identifier: str
    login: str
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull or merge request. `number` is that of its address; `merge_base_sha` is None where the forge doesn't say.

    `head_repository` is None when the fork that it came from was deleted. `base_sha` is the tip of the base branch as
    the forge knows it, `merge_base_sha` where the head branched off.
    """

    number: int
    title: str
    state: PullRequestState
    is_draft: bool
    author: Person
    head_sha: str
    head_ref: str
    head_repository: str | None
    base_sha: str
    base_ref: str
    merge_base_sha: str | None
    is_fork: bool
    labels: tuple[str, ...]
    url: str


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of a pull request. `patch` is None where the forge gives none: too large, or binary.

    `blob_sha` is git's name of the content at the head (None where the forge doesn't say).
    """

    path: str
    status: FileStatus
    previous_path: str | None = None
    patch: str | None = None
    blob_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """A remark at lines of a file. Columns only where it begins and ends on one line; from 1, both ends included."""

    path: str
    start_line: int
    end_line: int
    level: AnnotationLevel
    title: str
    message: str
    raw_details: str = ""
    start_column: int | None = None
    end_column: int | None = None


@dataclass(frozen=True, slots=True)
class CheckAction:
    """A button of a check. The forge sends `identifier` back when it is pressed."""

    identifier: str
    label: str
    description: str


@dataclass(frozen=True, slots=True)
class CheckOutput:
    """What a check says. `annotations` are those to add with this call: at most `ForgeFeatures.annotations_at_once`."""

    title: str
    summary: str
    text: str = ""
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A check as it should read at the forge. `external_id` is our own name of it, by which it is found again.

    `conclusion` is set when, and only when, `status` is `completed`.
    """

    name: str
    head_sha: str
    external_id: str
    status: CheckStatus
    conclusion: Conclusion | None = None
    details_url: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    output: CheckOutput | None = None
    actions: tuple[CheckAction, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check as the forge has it. `annotations` is how many it holds: what became of a page whose answer was lost."""

    identifier: str
    name: str
    head_sha: str
    external_id: str
    status: CheckStatus
    conclusion: str | None
    annotations: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, in the conversation or at a line. `by_us`: this application wrote it (a copied marker is no proof).

    `node_id` is what minimising takes; the same as `identifier` where the forge has only one.
    """

    identifier: str
    node_id: str
    author: Person
    by_us: bool
    body: str
    created_at: datetime
    updated_at: datetime
    url: str = ""


@dataclass(frozen=True, slots=True)
class ReviewComment:
    """A comment to be put at lines of the new side; `start_line` is None for a single line.

    `previous_path` is that of a file that was renamed.
    """

    path: str
    line: int
    body: str
    start_line: int | None = None
    previous_path: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewDraft:
    """A review to be written on a commit: a text, and comments at lines that the diff added."""

    commit_sha: str
    body: str
    comments: tuple[ReviewComment, ...]


@dataclass(frozen=True, slots=True)
class PostedReview:
    """What became of a draft. `rejected` are comments that the forge refused one by one: their lines are not in its
    diff. Always empty where reviews are atomic, which raise instead.
    """

    identifier: str | None
    rejected: tuple[ReviewComment, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewThread:
    """A conversation at a line. `line` is None when the line is gone; `complete`: all its comments are listed here."""

    identifier: str
    path: str
    line: int | None
    is_resolved: bool
    is_outdated: bool
    comments: tuple[Comment, ...]
    complete: bool = True

    @property
    def by_us(self) -> bool:
        """Whether we began it."""
        return bool(self.comments) and self.comments[0].by_us

    @property
    def has_reply(self) -> bool:
        """Whether somebody else wrote in it, as far as is known: then it is theirs, too, and we leave it."""
        return not self.complete or any(not comment.by_us for comment in self.comments)


@dataclass(frozen=True, slots=True)
class SarifUpload:
    """A SARIF log for a commit. `ref` is written whole: `refs/pull/7/head`."""

    commit_sha: str
    ref: str
    sarif: bytes
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CloneAccess:
    """How to fetch. `headers` hold a credential: as `http.extraHeader`, never in an address, and never in a log."""

    url: str
    pull_request_ref: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
