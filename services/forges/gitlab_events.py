"""Reads webhooks of GitLab: which of them concern us, and what they say. Pure.

GitLab has no installations: one account of ours sees what it was invited to. Its server stands for the installation.
Lenient about everything that is not used.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from services.forges.events import (
    CommentWritten,
    Event,
    InstallationRef,
    PullRequestChanged,
    Pushed,
    RepositoryRef,
    Speaker,
    What,
)
from services.forges.webhook_errors import UnreadableWebhookError

_LONGEST_COMMENT: Final = 20_000
_BRANCH: Final = "refs/heads/"
_NO_COMMIT: Final = "0" * 40
_PUBLIC: Final = 20
_MERGE_REQUEST: Final = frozenset({"open", "update", "reopen", "close", "merge"})


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Project(_Lenient):
    id: int
    path_with_namespace: str
    git_http_url: str
    web_url: str
    visibility_level: int = 0
    default_branch: str | None = None


class _User(_Lenient):
    id: int = 0
    username: str = ""


class _MergeRequest(_Lenient):
    iid: int
    action: str = ""


class _Note(_Lenient):
    id: int
    note: str = ""
    noteable_type: str = ""
    type: str | None = None
    action: str = "create"
    system: bool = False


class _MergeRequestPayload(_Lenient):
    project: _Project
    object_attributes: _MergeRequest


class _NotePayload(_Lenient):
    project: _Project
    user: _User
    object_attributes: _Note
    merge_request: _MergeRequest | None = None


class _PushPayload(_Lenient):
    project: _Project
    ref: str
    after: str


def read_gitlab(event: str, payload: dict[str, Any], *, server: str) -> Event | None:
    """What the webhook says; None if it doesn't concern us. Raises `UnreadableWebhookError`."""
    reader = _READERS.get(event)
    if reader is None:
        return None
    try:
        read = reader(payload)
        return None if read is None else _event(*read, server)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UnreadableWebhookError(f"the {event} can't be read: {place}: {first['msg']}") from None


_Read = tuple[_Project, str, What]


def _event(project: _Project, action: str, what: What, server: str) -> Event:
    return Event(
        forge="gitlab",
        action=action,
        installation=InstallationRef(external_id=server, account=server),
        repository=RepositoryRef(
            external_id=str(project.id),
            full_name=project.path_with_namespace,
            clone_url=project.git_http_url,
            web_url=project.web_url,
            is_private=project.visibility_level < _PUBLIC,
            default_branch=project.default_branch or "main",
        ),
        what=what,
    )


def _merge_request(payload: dict[str, Any]) -> _Read | None:
    read = _MergeRequestPayload.model_validate(payload)
    request = read.object_attributes
    if request.action not in _MERGE_REQUEST:
        return None
    return read.project, request.action, PullRequestChanged(number=request.iid)


def _note(payload: dict[str, Any]) -> _Read | None:
    read = _NotePayload.model_validate(payload)
    note = read.object_attributes
    if read.merge_request is None or note.noteable_type != "MergeRequest" or note.action != "create" or note.system:
        return None
    return (
        read.project,
        note.action,
        CommentWritten(
            number=read.merge_request.iid,
            comment_id=str(note.id),
            author=Speaker(external_id=str(read.user.id), login=read.user.username),
            body=note.note[:_LONGEST_COMMENT],
            at_line=note.type == "DiffNote",
        ),
    )


def _push(payload: dict[str, Any]) -> _Read | None:
    read = _PushPayload.model_validate(payload)
    if not read.ref.startswith(_BRANCH) or read.after == _NO_COMMIT:
        return None
    return read.project, "", Pushed(branch=read.ref.removeprefix(_BRANCH), sha=read.after)


_READERS: Final = {
    "Merge Request Hook": _merge_request,
    "Note Hook": _note,
    "Push Hook": _push,
}
