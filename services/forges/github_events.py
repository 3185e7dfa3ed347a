"""Reads webhooks of GitHub: which of them concern us, and what they say. Pure.

Lenient about everything that is not used, since GitHub adds fields at any time and older servers lack some. What is
used and is not there makes a webhook unreadable, which is answered so that it shows in GitHub's list of deliveries.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.forges.events import (
    CheckRequested,
    CommentWritten,
    Event,
    InstallationChanged,
    InstallationRef,
    PullRequestChanged,
    Pushed,
    RepositoriesChanged,
    RepositoryChanged,
    RepositoryRef,
    Speaker,
    ThreadChanged,
    What,
)
from services.forges.webhook_errors import UnreadableWebhookError

# A command is one line; nothing behind this is looked at.
_LONGEST_COMMENT: Final = 20_000
_BRANCH: Final = "refs/heads/"
_NO_COMMIT: Final = "0" * 40

_INSTALLATION: Final[dict[str, Any]] = {
    "created": "created",
    "deleted": "removed",
    "suspend": "suspended",
    "unsuspend": "unsuspended",
    "new_permissions_accepted": "permissions",
}
_PULL_REQUEST: Final = frozenset(
    {"opened", "synchronize", "reopened", "ready_for_review", "converted_to_draft", "edited", "closed"}
)
_REPOSITORY: Final[dict[str, Any]] = {"renamed": "moved", "transferred": "moved", "deleted": "removed"}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Account(_Lenient):
    id: int = 0
    login: str = ""
    type: str = "User"


class _Installation(_Lenient):
    id: int
    account: _Account = _Account()
    permissions: dict[str, str] = {}


class _Repository(_Lenient):
    id: int
    full_name: str
    clone_url: str
    html_url: str
    private: bool = False
    default_branch: str = "main"
    owner: _Account = _Account()


class _Listed(_Lenient):
    id: int


class _PullRequest(_Lenient):
    number: int


class _Check(_Lenient):
    head_sha: str
    external_id: str | None = None
    pull_requests: list[_PullRequest] = []


class _Action(_Lenient):
    identifier: str = ""


class _Issue(_Lenient):
    number: int
    pull_request: dict[str, Any] | None = None


class _Comment(_Lenient):
    id: int
    body: str | None = ""
    user: _Account | None = None


class _Payload(_Lenient):
    action: str = ""
    installation: _Installation | None = None
    repository: _Repository | None = None
    sender: _Account = _Account()


class _RepositoriesPayload(_Payload):
    repositories_added: list[_Listed] = []
    repositories_removed: list[_Listed] = []


class _InstallationPayload(_Payload):
    repository: None = None


class _PushPayload(_Payload):
    ref: str
    after: str


class _PullRequestPayload(_Payload):
    pull_request: _PullRequest


class _CheckRunPayload(_Payload):
    check_run: _Check
    requested_action: _Action = _Action()


class _CheckSuitePayload(_Payload):
    check_suite: _Check


class _IssueCommentPayload(_Payload):
    issue: _Issue
    comment: _Comment


class _ReviewCommentPayload(_PullRequestPayload):
    comment: _Comment


class _Changed(_Lenient):
    base: dict[str, Any] | None = None


class _EditedPayload(_PullRequestPayload):
    changes: _Changed = Field(default_factory=_Changed)


_Model = TypeVar("_Model", bound=_Payload)


def read_github(event: str, payload: dict[str, Any]) -> Event | None:
    """What the webhook says; None if it doesn't concern us. Raises `UnreadableWebhookError`."""
    reader = _READERS.get(event)
    if reader is None:
        return None
    try:
        read = reader(payload)
        return None if read is None else _event(*read)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UnreadableWebhookError(f"the {event} webhook can't be read: {place}: {first['msg']}") from None


_Read = tuple[_Payload, What]


def _event(payload: _Payload, what: What) -> Event | None:
    if payload.installation is None:  # the hook of a repository, not of the application
        return None
    place = payload.repository
    account = payload.installation.account.login or ("" if place is None else place.owner.login)
    return Event(
        forge="github",
        action=payload.action,
        installation=InstallationRef(external_id=str(payload.installation.id), account=account),
        repository=None
        if place is None
        else RepositoryRef(
            external_id=str(place.id),
            full_name=place.full_name,
            clone_url=place.clone_url,
            web_url=place.html_url,
            is_private=place.private,
            default_branch=place.default_branch,
        ),
        what=what,
    )


def _installation(payload: dict[str, Any]) -> _Read | None:
    change = _INSTALLATION.get(str(payload.get("action")))
    if change is None:
        return None
    read = _InstallationPayload.model_validate({**payload, "repository": None})
    permissions = {} if read.installation is None else read.installation.permissions
    return read, InstallationChanged(change=change, permissions=permissions)


def _repositories(payload: dict[str, Any]) -> _Read | None:
    read = _RepositoriesPayload.model_validate({**payload, "repository": None})
    return read, RepositoriesChanged(
        added=tuple(str(each.id) for each in read.repositories_added),
        removed=tuple(str(each.id) for each in read.repositories_removed),
    )


def _repository(payload: dict[str, Any]) -> _Read | None:
    change = _REPOSITORY.get(str(payload.get("action")))
    return None if change is None else (_Payload.model_validate(payload), RepositoryChanged(change=change))


def _push(payload: dict[str, Any]) -> _Read | None:
    read = _PushPayload.model_validate(payload)
    if not read.ref.startswith(_BRANCH) or read.after == _NO_COMMIT:
        return None
    return read, Pushed(branch=read.ref.removeprefix(_BRANCH), sha=read.after)


def _pull_request(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") not in _PULL_REQUEST:
        return None
    read = _EditedPayload.model_validate(payload)
    if read.action == "edited" and read.changes.base is None:  # a title or a text
        return None
    return read, PullRequestChanged(number=read.pull_request.number)


def _check_suite(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") not in {"requested", "rerequested"}:
        return None
    read = _CheckSuitePayload.model_validate(payload)
    suite = read.check_suite
    numbers = tuple(each.number for each in suite.pull_requests)
    return read, CheckRequested(head_sha=suite.head_sha, numbers=numbers, again=read.action == "rerequested")


def _check_run(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") not in {"rerequested", "requested_action"}:
        return None
    read = _CheckRunPayload.model_validate(payload)
    run = read.check_run
    return read, CheckRequested(
        head_sha=run.head_sha,
        numbers=tuple(each.number for each in run.pull_requests),
        external_id=run.external_id or "",
        again=True,
        action=read.requested_action.identifier,
    )


def _issue_comment(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") != "created":
        return None
    read = _IssueCommentPayload.model_validate(payload)
    if read.issue.pull_request is None:
        return None
    return read, _comment(read.comment, read.issue.number, at_line=False)


def _review_comment(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") != "created":
        return None
    read = _ReviewCommentPayload.model_validate(payload)
    return read, _comment(read.comment, read.pull_request.number, at_line=True)


def _comment(comment: _Comment, number: int, *, at_line: bool) -> CommentWritten:
    return CommentWritten(
        number=number,
        comment_id=str(comment.id),
        author=_speaker(comment.user or _Account(login="ghost")),
        body=(comment.body or "")[:_LONGEST_COMMENT],
        at_line=at_line,
    )


def _thread(payload: dict[str, Any]) -> _Read | None:
    if payload.get("action") not in {"resolved", "unresolved"}:
        return None
    read = _PullRequestPayload.model_validate(payload)
    return read, ThreadChanged(number=read.pull_request.number, sender=_speaker(read.sender))


def _speaker(account: _Account) -> Speaker:
    is_bot = account.type == "Bot" or account.login.endswith("[bot]")
    return Speaker(external_id=str(account.id), login=account.login, is_bot=is_bot)


_READERS: Final = {
    "installation": _installation,
    "installation_repositories": _repositories,
    "repository": _repository,
    "push": _push,
    "pull_request": _pull_request,
    "check_suite": _check_suite,
    "check_run": _check_run,
    "issue_comment": _issue_comment,
    "pull_request_review_comment": _review_comment,
    "pull_request_review_thread": _thread,
}
