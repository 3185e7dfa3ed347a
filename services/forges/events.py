"""What a webhook says, in words of our own that fit every forge; small enough to be kept until it was dealt with.

An event is a hint to look, never the truth: deliveries come late, twice and in any order, so what counts is what the
forge answers when it is asked. All text in them came from outside. This module must not know how a forge writes it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

_SHA = r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$"
Sha = Annotated[str, Field(pattern=_SHA)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InstallationRef(_Value):
    """The installation that an event came through. `account` is empty where the event doesn't say whose it is."""

    external_id: str
    account: str = ""


class RepositoryRef(_Value):
    """The repository that an event is about."""

    external_id: str
    full_name: str
    clone_url: str
    web_url: str
    is_private: bool
    default_branch: str


class Speaker(_Value):
    """Who wrote or did something."""

    external_id: str
    login: str
    is_bot: bool = False


class InstallationChanged(_Value):
    """The application was installed, removed, suspended, or given other rights."""

    kind: Literal["installation"] = "installation"
    change: Literal["created", "removed", "suspended", "unsuspended", "permissions"]
    permissions: dict[str, str] = {}


class RepositoriesChanged(_Value):
    """Repositories were put into an installation or taken out of it: their ids."""

    kind: Literal["repositories"] = "repositories"
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class RepositoryChanged(_Value):
    """A repository has another name or owner, or is gone."""

    kind: Literal["repository"] = "repository"
    change: Literal["moved", "removed"]


class Pushed(_Value):
    """A branch has a new tip."""

    kind: Literal["push"] = "push"
    branch: str
    sha: Sha


class PullRequestChanged(_Value):
    """Something about a pull request is other than it was."""

    kind: Literal["pull_request"] = "pull_request"
    number: int


class CheckRequested(_Value):
    """A check of a commit is wanted; `again`: a person asked, though there is one. `action` is the pressed button."""

    kind: Literal["check"] = "check"
    head_sha: Sha
    numbers: tuple[int, ...] = ()
    external_id: str = ""
    again: bool = False
    action: str = ""


class CommentWritten(_Value):
    """Somebody wrote into a pull request. `at_line`: in a conversation at a line, where commands are not looked for."""

    kind: Literal["comment"] = "comment"
    number: int
    comment_id: str
    author: Speaker
    body: str
    at_line: bool = False


class ThreadChanged(_Value):
    """A conversation at a line was resolved or opened again."""

    kind: Literal["thread"] = "thread"
    number: int
    sender: Speaker


What = Annotated[
    InstallationChanged
    | RepositoriesChanged
    | RepositoryChanged
    | Pushed
    | PullRequestChanged
    | CheckRequested
    | CommentWritten
    | ThreadChanged,
    Field(discriminator="kind"),
]


class Event(_Value):
    """A webhook that concerns us. `action` is the forge's own word, for people who look."""

    forge: Literal["github", "gitlab"]
    action: str
    installation: InstallationRef
    repository: RepositoryRef | None = None
    what: What


EVENT: TypeAdapter[Event] = TypeAdapter(Event)
