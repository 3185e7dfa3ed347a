"""The way of every GitLab request, and what an operation gets of it."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from tools.fake_forge.exchange import Refusal, Reply
from tools.fake_forge.failures import Failure, Hold, Switches
from tools.fake_forge.gateway import Request
from tools.fake_forge.gitlab.hub import GitLabHub
from tools.fake_forge.gitlab.state import MergeRequest, Project, User

PREFIX: Final = "/api/v4"
Model = TypeVar("Model", bound=BaseModel)


def refused(status: int, message: str, *, key: str = "message") -> Refusal:
    """An answer that says no, in GitLab's form."""
    refusal = Refusal(status, message)
    refusal.body = {key: message}
    return refusal


@dataclass
class GitLabCall:
    """A request whose sender is known."""

    hub: GitLabHub
    path: dict[str, str]
    query: dict[str, str]
    repeated: dict[str, list[str]]
    body: dict[str, Any]
    address: str
    user: User | None
    wrote: str | None = None

    def parsed(self, model: type[Model]) -> Model:
        """The body and the query together, as GitLab takes them. Raises `Refusal`; what is wrong is a violation."""
        try:
            return model.model_validate(self.query | self.body)
        except ValidationError as error:
            for each in error.errors():
                self.hub.state.world.violations.append(f"GitLab {model.__name__} {each['loc']}: {each['msg']}")
            wrong = ", ".join(f"{'.'.join(map(str, each['loc']))} is invalid" for each in error.errors())
            raise refused(400, wrong, key="error") from error

    def project(self, level: int) -> Project:
        """The project in the path, if the sender has that access level there. Raises `Refusal`."""
        found = self.hub.state.project(self.path["id"])
        has = found.level(self.user.username) if found and self.user else 0
        if found is None or (found.private and has == 0):
            raise refused(404, "404 Project Not Found")
        if has < level:
            if self.user is None:
                raise refused(401, "401 Unauthorized")
            if found.private or level > 0:
                raise refused(403, "403 Forbidden")
        return found

    def merge_request(self, level: int) -> MergeRequest:
        """The merge request in the path. Raises `Refusal`."""
        project = self.project(level)
        number = self.path["iid"]
        found = project.merge_requests.get(int(number)) if number.isdigit() else None
        if found is None:
            raise refused(404, "404 Not found")
        return found

    def page(self, items: Sequence[Any], tell: Callable[[Any], Any]) -> Reply:
        """One page of a list, with GitLab's headers and links."""
        size = min(max(int(self.query.get("per_page", "20")), 1), 100)
        number = max(int(self.query.get("page", "1")), 1)
        last = max(math.ceil(len(items) / size), 1)
        places = {"first": 1, "last": last}
        if number > 1:
            places["prev"] = number - 1
        if number < last:
            places["next"] = number + 1
        query = self.query | {"per_page": str(size)}
        links = (f'<{self.address}?{urlencode(query | {"page": str(n)})}>; rel="{rel}"' for rel, n in places.items())
        headers = {
            "link": ", ".join(links),
            "x-page": str(number),
            "x-per-page": str(size),
            "x-total": str(len(items)),
            "x-total-pages": str(last),
            "x-next-page": str(places.get("next", "")),
            "x-prev-page": str(places.get("prev", "")),
        }
        return Reply(200, [tell(item) for item in items[(number - 1) * size : number * size]], headers)


@dataclass(frozen=True)
class GitLabOperation:
    method: str
    template: str
    handler: Callable[[GitLabCall], Reply]
    wrote: str | None


class GitLabOperations:
    """The operations of one module, collected by decorator."""

    def __init__(self) -> None:
        self.all: list[GitLabOperation] = []

    def add(
        self, name: str, *, wrote: str | None = None
    ) -> Callable[[Callable[[GitLabCall], Reply]], Callable[[GitLabCall], Reply]]:
        """Declare an operation, as `GET /projects/{id}`."""
        method, template = name.split()

        def keep(handler: Callable[[GitLabCall], Reply]) -> Callable[[GitLabCall], Reply]:
            self.all.append(GitLabOperation(method, PREFIX + template, handler, wrote))
            return handler

        return keep


class GitLabGateway:
    """Carries out operations of the fake GitLab, one at a time."""

    def __init__(self, hub: GitLabHub, switches: Switches) -> None:
        self._hub = hub
        self._switches = switches

    def answer(self, request: Request, operation: GitLabOperation, path: dict[str, str]) -> Reply | None:
        """The answer; None where the connection is to be cut."""
        switched = self._switches.take(request.method, request.path)
        if isinstance(switched, Hold) and not switched.after:
            switched.pass_through()
        failure = switched if isinstance(switched, Failure) else None
        world = self._hub.state.world
        with world.lock:
            body: Any = request.body.decode(errors="replace")
            call, reply = None, None
            if failure is None or failure.after:
                body, call, reply = self._carry_out(request, operation, path)
            if failure is not None:
                reply = _failed(failure)
            world.remember(
                method=request.method,
                path=request.path,
                query=request.query,
                headers=request.headers,
                body=body,
                operation=f"{operation.method} {operation.template}",
                status=reply.status if reply else None,
                failure=failure.name if failure else None,
                wrote=call.wrote if call else None,
            )
        if isinstance(switched, Hold) and switched.after:
            switched.pass_through()
        return reply

    def _carry_out(
        self, request: Request, operation: GitLabOperation, path: dict[str, str]
    ) -> tuple[Any, GitLabCall | None, Reply]:
        body, call = None, None
        try:
            user = self._hub.sender(request.headers)
            body = json.loads(request.body) if request.body else {}
            address = f"{request.base}{request.path}"
            call = GitLabCall(self._hub, path, request.query, request.repeated, body, address, user)
            reply = operation.handler(call)
            if operation.wrote and call.wrote is None:
                call.wrote = operation.wrote
        except Refusal as refusal:
            reply = Reply(refusal.status, refusal.body, dict(refusal.headers))
        except ValueError:
            reply = Reply(400, {"error": "The request's body is no JSON"})
        except Exception:  # noqa: BLE001  # a fault of the fake is to fail the test, not to look like one of GitLab's
            self._hub.state.world.violations.append(traceback.format_exc())
            reply = Reply(500, {"message": "The fake forge failed: see its violations"})
        reply.headers |= {"ratelimit-limit": "2000", "ratelimit-remaining": "1999", "ratelimit-observed": "1"}
        return body, call, reply


def _failed(failure: Failure) -> Reply | None:
    if failure.status is None:
        return None
    return Reply(failure.status, failure.body or {"message": failure.message}, dict(failure.headers), failure.text)
