"""GitHub's answers as values of ours."""

from __future__ import annotations

from typing import Final

from services.forges.github.models import Author, CheckRunAnswer, File, Pull, User
from services.forges.values import ChangedFile, CheckRun, CheckStatus, FileStatus, Person, PullRequest

_FILE_STATUS: Final[dict[str, FileStatus]] = {
    "added": "added", "copied": "added", "removed": "removed", "renamed": "renamed", "unchanged": "unchanged",
}  # fmt: skip
_CHECK_STATUS: Final[dict[str, CheckStatus]] = {"in_progress": "in_progress", "completed": "completed"}
_NOBODY: Final = Person(identifier="", login="ghost")  # what GitHub calls whoever deleted their account


def pull_request(pull: Pull) -> PullRequest:
    """A pull request."""
    return PullRequest(
        number=pull.number,
        title=pull.title,
        state="merged" if pull.merged_at is not None else "open" if pull.state == "open" else "closed",
        is_draft=pull.draft,
        author=person(pull.user),
        head_sha=pull.head.sha,
        head_ref=pull.head.ref,
        head_repository=pull.head.repo.full_name if pull.head.repo is not None else None,
        base_sha=pull.base.sha,
        base_ref=pull.base.ref,
        merge_base_sha=None,
        is_fork=pull.head.repo is None or pull.base.repo is None or pull.head.repo.id != pull.base.repo.id,
        labels=tuple(label.name for label in pull.labels),
        url=pull.html_url,
    )


def person(user: User | None) -> Person:
    """Somebody, as REST says it."""
    if user is None:
        return _NOBODY
    return Person(identifier=str(user.id), login=user.login, is_bot=user.type == "Bot")


def person_of_graphql(author: Author | None) -> Person:
    """Somebody, as GraphQL says it: without an id, and without the `[bot]` of a bot."""
    if author is None:
        return _NOBODY
    is_bot = author.kind == "Bot"
    login = f"{author.login.removesuffix('[bot]')}[bot]" if is_bot else author.login
    return Person(identifier="", login=login, is_bot=is_bot)


def check_run(run: CheckRunAnswer) -> CheckRun:
    """A check."""
    return CheckRun(
        identifier=str(run.id),
        name=run.name,
        head_sha=run.head_sha,
        external_id=run.external_id or "",
        status=_CHECK_STATUS.get(run.status, "queued"),
        conclusion=run.conclusion,
        annotations=run.output.annotations_count,
    )


def changed_file(file: File) -> ChangedFile:
    """A file of a pull request."""
    return ChangedFile(
        path=file.filename,
        status=_FILE_STATUS.get(file.status, "modified"),
        previous_path=file.previous_filename,
        patch=file.patch,
        blob_sha=file.sha,
    )
