"""What an operation gets and gives: a call, a reply, or a refusal; and the table of operations.

Knows no operation: they are declared in `github/` and `gitlab/`, and carried out by `gateway.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

from tools.fake_forge.world import Installation, Repository, Token

if TYPE_CHECKING:
    from tools.fake_forge.github.hub import Hub

Json = dict[str, Any]
Level = Literal["read", "write", "admin"]
_LEVELS: Final = {"read": 1, "write": 2, "admin": 3}


class Refusal(Exception):  # noqa: N818  # an answer, not a fault
    """An answer that says no, in GitHub's form."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        errors: Sequence[object] = (),
        documentation: str = "https://docs.github.com/rest",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.headers = dict(headers or {})
        self.body: Json = {"message": message, "documentation_url": documentation, "status": str(status)}
        if errors:
            self.body["errors"] = list(errors)


def not_found() -> Refusal:
    return Refusal(404, "Not Found")


def unprocessable(*errors: str) -> Refusal:
    """Where GitHub lists sentences."""
    return Refusal(422, "Unprocessable Entity", errors=errors)


def invalid(resource: str, field_name: str, message: str, code: str = "custom") -> Refusal:
    """Where GitHub names the field."""
    error = {"resource": resource, "code": code, "field": field_name, "message": message}
    return Refusal(422, "Validation Failed", errors=[error])


@dataclass
class Reply:
    """An answer. `body` None is an empty one; `text` is one that is no JSON."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None


@dataclass
class Call:
    """A request whose sender is known and may do what he asks."""

    hub: Hub
    operation: Operation
    path: dict[str, str]
    query: dict[str, str]
    body: Any
    address: str
    principal: Token | Literal["app"] | None
    wrote: str | None = None
    _repository: Repository | None = None

    @property
    def repository(self) -> Repository:
        assert self._repository is not None, "the operation has no repository in its path"
        return self._repository

    def number(self, name: str) -> int:
        """A number in the path; what is no number is not found."""
        text = self.path[name]
        if not text.isdigit():
            raise not_found()
        return int(text)

    def allows(self, permission: str, level: Level, repository: Repository | None = None) -> bool:
        """Whether the sender has that permission, on the repository named or that of the path, if there is one."""
        if not isinstance(self.principal, Token):
            return False
        has = self.principal.permissions.get(permission)
        about = repository or self._repository
        covered = about is None or self.principal.covers(about)
        return covered and has is not None and _LEVELS[has] >= _LEVELS[level]

    def page(self, items: Sequence[Any], tell: Callable[[Any], Any], *, wrapped_as: str | None = None) -> Reply:
        """One page of a list, with `Link` headers to the others. `tell` builds the JSON of one item."""
        size = min(max(int(self.query.get("per_page", "30")), 1), 100)
        number = max(int(self.query.get("page", "1")), 1)
        last = max(math.ceil(len(items) / size), 1)
        told = [tell(item) for item in items[(number - 1) * size : number * size]]
        links = []
        if number > 1:
            links += [(number - 1, "prev")]
        if number < last:
            links += [(number + 1, "next"), (last, "last")]
        if number > 1:
            links += [(1, "first")]
        headers = {}
        if links:
            address = self.address
            if self._repository is not None:
                # GitHub's links name the repository by its number: they can't be built, only followed.
                named = f"/repos/{self._repository.full_name}/"
                address = address.replace(named, f"/repositories/{self._repository.id}/", 1)
            text = (f'<{address}?{urlencode(self.query | {"page": str(n)})}>; rel="{rel}"' for n, rel in links)
            headers["link"] = ", ".join(text)
        body = told if wrapped_as is None else {"total_count": len(items), wrapped_as: told}
        return Reply(200, body, headers)


@dataclass(frozen=True)
class Operation:
    """One operation. `needs` are the permissions one of which will do; `app` wants the App's own JWT."""

    name: str
    handler: Callable[[Call], Reply]
    needs: tuple[tuple[str, Level], ...]
    app: bool
    wrote: str | None

    @property
    def method(self) -> str:
        return self.name.split()[0]

    @property
    def template(self) -> str:
        return self.name.split()[1]


class Operations:
    """The operations of one module, collected by decorator."""

    def __init__(self) -> None:
        self.all: list[Operation] = []

    def add(
        self, name: str, *needs: tuple[str, Level], app: bool = False, wrote: str | None = None
    ) -> Callable[[Callable[[Call], Reply]], Callable[[Call], Reply]]:
        """Declare an operation by GitHub's name of it, as `GET /repos/{owner}/{repo}`."""

        def keep(handler: Callable[[Call], Reply]) -> Callable[[Call], Reply]:
            self.all.append(Operation(name, handler, needs, app, wrote))
            return handler

        return keep


def allowed(installation: Installation, wanted: Mapping[str, str]) -> bool:
    """Whether an installation has at least these permissions."""
    return all(
        _LEVELS.get(level, 9) <= _LEVELS.get(installation.permissions.get(name, ""), 0)
        for name, level in wanted.items()
    )
