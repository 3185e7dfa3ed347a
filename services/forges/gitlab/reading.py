"""GitLab's answers as values of ours."""

from __future__ import annotations

from typing import Final

from services.forges.errors import UnreadableAnswerError
from services.forges.gitlab.models import Diff, Discussion, MergeRequest, Note, Status, User
from services.forges.values import (
    ChangedFile,
    CheckRun,
    CheckStatus,
    Comment,
    FileStatus,
    Permission,
    Person,
    PullRequest,
    PullRequestState,
    ReviewThread,
)

_STATES: Final[dict[str, PullRequestState]] = {"opened": "open", "locked": "open", "merged": "merged"}
_STATUS: Final[dict[str, CheckStatus]] = {"pending": "queued", "created": "queued", "running": "in_progress"}
_CONCLUSION: Final = {"success": "success", "failed": "failure", "canceled": "cancelled", "skipped": "skipped"}
_REPORTER: Final = 20
_DEVELOPER: Final = 30
_OWNER: Final = 50


def person(user: User | None) -> Person:
    """Somebody; accounts that were deleted are GitLab's ghost."""
    if user is None:
        return Person(identifier="", login="ghost")
    return Person(identifier=str(user.id), login=user.username, is_bot=user.bot)


def pull_request(merge_request: MergeRequest) -> PullRequest:
    """A merge request. Raises `UnreadableAnswerError` while GitLab has not made its diff yet."""
    refs = merge_request.diff_refs
    head = merge_request.sha or (refs.head if refs is not None else None)
    if head is None or refs is None:
        raise UnreadableAnswerError("GitLab has not prepared the merge request yet", outcome_unknown=False)
    return PullRequest(
        number=merge_request.iid,
        title=merge_request.title,
        state=_STATES.get(merge_request.state, "closed"),
        is_draft=merge_request.draft,
        author=person(merge_request.author),
        head_sha=head,
        head_ref=merge_request.source_branch,
        head_repository=None if merge_request.source_project_id is None else str(merge_request.source_project_id),
        base_sha=refs.start,
        base_ref=merge_request.target_branch,
        merge_base_sha=refs.base,
        is_fork=merge_request.source_project_id != merge_request.target_project_id,
        labels=tuple(merge_request.labels),
        url=merge_request.web_url,
    )


def changed_file(diff: Diff) -> ChangedFile:
    """A file of a merge request."""
    status: FileStatus = "modified"
    if diff.new_file:
        status = "added"
    elif diff.deleted_file:
        status = "removed"
    elif diff.renamed_file:
        status = "renamed"
    return ChangedFile(
        path=diff.new_path,
        status=status,
        previous_path=diff.old_path if diff.renamed_file else None,
        patch=None if diff.too_large or diff.collapsed or not diff.diff else diff.diff,
    )


def permission(access_level: int) -> Permission:
    """What a role may do: a Developer writes, a Reporter reads code, a Guest nothing that counts here."""
    if access_level >= _OWNER:
        return Permission.ADMIN
    if access_level >= _DEVELOPER:
        return Permission.WRITE
    return Permission.READ if access_level >= _REPORTER else Permission.NONE


def check_run(status: Status, external_id: str) -> CheckRun:
    """A commit status, which has no external id of its own: it is found by its name."""
    return CheckRun(
        identifier=str(status.id),
        name=status.name,
        head_sha=status.sha,
        external_id=external_id,
        status=_STATUS.get(status.status, "completed"),
        conclusion=_CONCLUSION.get(status.status),
        annotations=0,
    )


def comment(note: Note, *, us: Person) -> Comment:
    """A note."""
    author = person(note.author)
    return Comment(
        identifier=str(note.id),
        node_id=str(note.id),
        author=author,
        by_us=author.identifier == us.identifier,
        body=note.body,
        created_at=note.created_at,
        updated_at=note.updated_at,
    )


def thread(discussion: Discussion, *, us: Person) -> ReviewThread | None:
    """A discussion at a line; None for any other."""
    notes = [note for note in discussion.notes if not note.system]
    if not notes or notes[0].type != "DiffNote" or notes[0].position is None:
        return None
    first, position = notes[0], notes[0].position
    return ReviewThread(
        identifier=discussion.id,
        path=position.new_path or position.old_path or "",
        line=position.new_line,
        is_resolved=bool(first.resolved),
        is_outdated=False,
        comments=tuple(comment(note, us=us) for note in notes),
    )
