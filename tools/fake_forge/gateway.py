"""The way of every REST request: remembered, failed on purpose, checked, carried out, checked again, answered."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from tools.fake_forge.exchange import Call, Operation, Refusal, Reply, not_found
from tools.fake_forge.failures import Failure, Hold, Switches
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.world import Installation, Repository, Token

_VERSIONS: Final = ("2022-11-28", "2026-03-10")


@dataclass(frozen=True)
class Request:
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    repeated: dict[str, list[str]]  # query parameters with all of their values
    headers: Mapping[str, str]
    body: bytes
    base: str  # scheme and host, as the client wrote them


class Gateway:
    """Carries out operations of the fake GitHub, one at a time."""

    def __init__(self, hub: Hub, switches: Switches) -> None:
        self._hub = hub
        self._switches = switches

    def answer(self, request: Request, operation: Operation, path: dict[str, str]) -> Reply | None:
        """The answer; None where the connection is to be cut."""
        with self._hub.traffic.one():
            return self._answer(request, operation, path)

    def _answer(self, request: Request, operation: Operation, path: dict[str, str]) -> Reply | None:
        switched = self._switches.take(request.method, request.path)
        if isinstance(switched, Hold) and not switched.after:
            switched.pass_through()
        failure = switched if isinstance(switched, Failure) else None
        with self._hub.world.lock:
            body, call, reply = None, None, None
            if failure is None or failure.after:
                body, call, reply = self._carry_out(request, operation, path)
            else:
                body = request.body.decode(errors="replace")
            if failure is not None:
                reply = self._failed(failure)
            self._hub.world.remember(
                method=request.method,
                path=request.path,
                query=request.query,
                headers=request.headers,
                body=body,
                operation=operation.name,
                status=reply.status if reply else None,
                failure=failure.name if failure else None,
                wrote=call.wrote if call else None,
            )
        if isinstance(switched, Hold) and switched.after:
            switched.pass_through()
        return reply

    def _carry_out(
        self, request: Request, operation: Operation, path: dict[str, str]
    ) -> tuple[Any, Call | None, Reply]:
        body, call, installation = None, None, None
        try:
            principal = self._sender(request)
            installation = principal.installation if isinstance(principal, Token) else None
            if operation.name != "GET /rate_limit":  # asking is free
                self._count(installation)
            body = _json(request.body)
            self._validate(operation, request.query, body)
            call = Call(
                self._hub, operation, path, request.query, body or {}, f"{request.base}{request.path}", principal
            )
            self._admit(call, request)
            reply = operation.handler(call)
            if operation.wrote and call.wrote is None:
                call.wrote = operation.wrote
        except Refusal as refusal:
            reply = Reply(refusal.status, refusal.body, dict(refusal.headers))
        except Exception:  # noqa: BLE001  # a fault of the fake is to fail the test, not to look like one of GitHub's
            self._hub.world.violations.append(traceback.format_exc())
            reply = Reply(500, {"message": "The fake forge failed: see its violations"})
        if operation.name in self._hub.contract.operations:
            self._hub.world.violations += self._hub.contract.response(operation.name, reply.status, reply.body)
        reply = self._conditional(request, reply, installation)
        reply.headers |= self._limit_headers(installation, operation)
        return body, call, reply

    def _sender(self, request: Request) -> Token | Literal["app"] | None:
        if not request.headers.get("user-agent"):
            message = (
                "Request forbidden by administrative rules. Please make sure your request has a User-Agent header."
            )
            raise Refusal(403, message)
        version = request.headers.get("x-github-api-version", _VERSIONS[0])
        if version not in _VERSIONS:
            raise Refusal(400, f'Invalid API version "{version}"')
        return self._hub.authentication.principal(request.headers.get("authorization"))

    def _validate(self, operation: Operation, query: Mapping[str, str], body: Any) -> None:
        if operation.name not in self._hub.contract.operations:
            return
        wrong = self._hub.contract.request(operation.name, query, body)
        if wrong:
            self._hub.world.violations += wrong
            raise Refusal(422, "Invalid request.\n\n" + "\n".join(wrong))

    def _admit(self, call: Call, request: Request) -> None:
        """Find the repository, and see that the sender may do this."""
        operation, principal = call.operation, call.principal
        if operation.app and principal != "app":
            raise Refusal(401, "A JSON web token could not be decoded")
        if "owner" in call.path:
            call._repository = self._find(call, request)
        if not operation.needs:
            return
        if principal is None:
            raise Refusal(401, "Requires authentication")
        if not any(call.allows(*need) for need in operation.needs) and not self._reads_public(call):
            headers = {"x-accepted-github-permissions": "; ".join(f"{name}={level}" for name, level in operation.needs)}
            raise Refusal(403, "Resource not accessible by integration", headers=headers)

    @staticmethod
    def _reads_public(call: Call) -> bool:
        read_only = all(level == "read" for _, level in call.operation.needs)
        return read_only and call._repository is not None and not call._repository.private

    def _find(self, call: Call, request: Request) -> Repository:
        name = f"{call.path['owner']}/{call.path['repo']}"
        repository = self._hub.world.repository(name)
        if repository is None and (moved := self._hub.world.moved.get(name)) is not None:
            rest = request.path.removeprefix(f"/repos/{name}")
            there = f"{request.base}/repositories/{moved}{rest}"
            refusal = Refusal(301 if request.method == "GET" else 307, "Moved Permanently", headers={"location": there})
            refusal.body["url"] = there
            raise refusal
        if repository is None or (repository.private and not self._sees(call, repository)):
            raise not_found()
        return repository

    @staticmethod
    def _sees(call: Call, repository: Repository) -> bool:
        if isinstance(call.principal, Token):
            return call.principal.covers(repository)
        return call.principal == "app" and call.operation.app

    # Limits and conditional requests

    def _count(self, installation: Installation | None) -> None:
        if installation is None:
            return
        now = self._hub.world.clock.now()
        if installation.resets_at is None or installation.resets_at <= now:
            installation.resets_at, installation.used = now + timedelta(hours=1), 0
        installation.used += 1
        if installation.used > installation.limit:
            message = f"API rate limit exceeded for installation ID {installation.id}."
            raise Refusal(403, message)

    def _limit_headers(self, installation: Installation | None, operation: Operation) -> dict[str, str]:
        if installation is None or installation.resets_at is None:
            return {}
        return {
            "x-ratelimit-limit": str(installation.limit),
            "x-ratelimit-remaining": str(max(installation.limit - installation.used, 0)),
            "x-ratelimit-used": str(installation.used),
            "x-ratelimit-reset": str(int(installation.resets_at.timestamp())),
            "x-ratelimit-resource": "graphql" if operation.template == "/graphql" else "core",
        }

    @staticmethod
    def _conditional(request: Request, reply: Reply, installation: Installation | None) -> Reply:
        if request.method != "GET" or reply.status != 200:
            return reply
        tag = f'W/"{hashlib.sha256(json.dumps(reply.body, sort_keys=True).encode()).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            if installation is not None:
                installation.used -= 1  # not counted, says GitHub
            return Reply(304, None, {"etag": tag})
        reply.headers["etag"] = tag
        return reply

    def _failed(self, failure: Failure) -> Reply | None:
        if failure.status is None:
            return None
        refusal = Refusal(
            failure.status, failure.message, documentation=failure.documentation or "", headers=failure.headers
        )
        headers = dict(failure.headers)
        if failure.remaining_is_zero:
            reset = self._hub.world.clock.now() + timedelta(minutes=30)
            headers |= {
                "x-ratelimit-limit": "5000",
                "x-ratelimit-remaining": "0",
                "x-ratelimit-used": "5000",
                "x-ratelimit-reset": str(int(reset.timestamp())),
                "x-ratelimit-resource": "core",
            }
        return Reply(failure.status, failure.body or refusal.body, headers, failure.text)


def _json(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise Refusal(400, "Problems parsing JSON") from error
