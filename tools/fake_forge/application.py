"""The fake as a FastAPI application: routes, GitHub's aliases of addresses, git, and connections that are cut."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from tools.fake_forge.exchange import Operation, Refusal, Reply
from tools.fake_forge.failures import Failure, Hold, Switches
from tools.fake_forge.gateway import Gateway, Request
from tools.fake_forge.git_http import backend
from tools.fake_forge.github import apps, checks, comments, graphql, pulls, repositories, reviews, scanning
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.world import Asked, Repository, Token

_MODULES: Final = (apps, checks, comments, graphql, pulls, reviews, scanning, repositories)
_BY_NUMBER: Final = re.compile(r"^/repositories/(\d+)(/.*)?$")
# Names that may have slashes in them.
_WITH_SLASHES: Final = re.compile(r"\{(branch|ref|basehead)\}")
_GIT_SERVICES: Final = frozenset({"info/refs", "git-upload-pack", "git-receive-pack"})


def github_operations() -> list[Operation]:
    """All operations of the fake GitHub; those with more to their path come first, so that none hides another."""
    found = [operation for module in _MODULES for operation in module.operations.all]
    return sorted(found, key=lambda each: each.template.count("/"), reverse=True)


def create_application(hub: Hub, switches: Switches, git_root: Path) -> ASGIApp:
    """The whole application. It has no pages of documentation: a forge has none."""
    app = FastAPI(openapi_url=None)
    gateway = Gateway(hub, switches)
    for operation in github_operations():
        template = re.sub(_WITH_SLASHES, r"{\1:path}", operation.template)
        app.add_route(template, _endpoint(gateway, operation), methods=[operation.method])
    git = _Git(hub, switches, git_root)
    app.add_route("/{owner}/{repo}/{service:path}", git.answer, methods=["GET", "POST"])
    return _Outermost(app, hub)


def _endpoint(gateway: Gateway, operation: Operation) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(http: HttpRequest) -> Response:
        request = Request(
            method=http.method,
            path=http.url.path,
            query=dict(http.query_params),
            headers=http.headers,
            body=await http.body(),
            base=f"{http.url.scheme}://{http.url.netloc}",
        )
        path = {name: str(value) for name, value in http.path_params.items()}
        reply = await run_in_threadpool(gateway.answer, request, operation, path)
        if reply is None:
            return _NoAnswer()
        return _response(reply, gateway.now())

    return answer


def _response(reply: Reply, now: datetime) -> Response:
    headers = {
        "server": "github.com",
        "date": format_datetime(now, usegmt=True),
        "x-github-media-type": "github.v3; format=json",
    } | reply.headers
    if reply.body is None:
        return Response(status_code=reply.status, headers=headers)
    content = json.dumps(reply.body, ensure_ascii=False).encode()
    return Response(content, reply.status, headers, "application/json; charset=utf-8")


class _Outermost:
    """Aliases by a repository's number, and a way to the connection for answers that cut it."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._app = app
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (match := _BY_NUMBER.match(scope["path"])):
            repository = self._hub.world.repositories.get(int(match[1]))
            if repository is not None:
                path = f"/repos/{repository.full_name}{match[2] or ''}"
                scope = {**scope, "path": path, "raw_path": path.encode()}
        if scope["type"] == "http":
            scope["forge.cycle"] = send.__self__  # type: ignore[attr-defined]  # uvicorn's, of this request
        await self._app(scope, receive, send)


class _NoAnswer(Response):
    """Cuts the connection."""

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        cycle = scope["forge.cycle"]
        cycle.transport.abort()
        while not cycle.disconnected:
            await asyncio.sleep(0)


class _Git:
    """Clones and fetches. Private repositories want `x-access-token` and an installation's token."""

    def __init__(self, hub: Hub, switches: Switches, root: Path) -> None:
        self._hub = hub
        self._switches = switches
        self._root = root

    async def answer(self, http: HttpRequest) -> Response:
        body = await http.body()
        return await run_in_threadpool(self._answer, http, body)

    def _answer(self, http: HttpRequest, body: bytes) -> Response:
        failure = self._switches.take(http.method, http.url.path)
        if isinstance(failure, Hold):
            failure.pass_through()
            failure = None
        response = self._failed(failure) or self._served(http, body)
        with self._hub.world.lock:
            world = self._hub.world
            status = None if failure is not None and failure.status is None else response.status_code
            world.asked.append(
                Asked(
                    number=len(world.asked) + 1,
                    at=world.clock.now(),
                    method=http.method,
                    path=http.url.path,
                    query=dict(http.query_params),
                    headers={name: value for name, value in http.headers.items() if name != "authorization"},
                    body=None,
                    operation="git",
                    status=status,
                    failure=failure.name if failure else None,
                    wrote=None,
                )
            )
        return _NoAnswer() if status is None else response

    @staticmethod
    def _failed(failure: Failure | None) -> Response | None:
        if failure is None or failure.after:
            return None
        return Response(failure.message, failure.status or 500, failure.headers)

    def _served(self, http: HttpRequest, body: bytes) -> Response:
        service = http.path_params["service"]
        if service not in _GIT_SERVICES:
            return Response(json.dumps(Refusal(404, "Not Found").body), 404, media_type="application/json")
        try:
            with self._hub.world.lock:
                repository = self._admitted(http)
        except Refusal as refusal:
            return Response(str(refusal.body["message"]), refusal.status, refusal.headers, "text/plain")
        path = f"/{repository.git.path.name}/{service}"
        answer = backend(self._root, http.method, path, query=http.url.query, headers=http.headers, body=body)
        return Response(answer.body, answer.status, answer.headers)

    def _admitted(self, http: HttpRequest) -> Repository:
        name = f"{http.path_params['owner']}/{http.path_params['repo'].removesuffix('.git')}"
        world = self._hub.world
        repository = world.repository(name) or world.repositories.get(world.moved.get(name, -1))
        token = self._token(http.headers.get("authorization"))
        challenge = {"www-authenticate": 'Basic realm="GitHub"'}
        if "git-receive-pack" in (http.path_params["service"], http.query_params.get("service")):
            raise Refusal(403, "Write access to repository not granted.")
        if repository is None or (repository.private and token is None):
            # Whether a private repository exists is nobody's business.
            raise Refusal(401 if token is None else 404, "Repository not found.", headers={} if token else challenge)
        if token is not None and repository.private:
            if not token.covers(repository):
                raise Refusal(404, "Repository not found.")
            if "contents" not in token.permissions:
                raise Refusal(403, "Write access to repository not granted.")
        return repository

    def _token(self, header: str | None) -> Token | None:
        """The installation token in a Basic header. Raises `Refusal` for anything else that is there."""
        if not header:
            return None
        scheme, _, packed = header.partition(" ")
        try:
            user, _, password = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Refusal(400, "Bad Request") from error
        if scheme.lower() != "basic" or user != "x-access-token":
            raise Refusal(401, "Invalid username or token.", headers={"www-authenticate": 'Basic realm="GitHub"'})
        try:
            return self._hub.authentication.token(password)
        except Refusal as refusal:
            refusal.headers["www-authenticate"] = 'Basic realm="GitHub"'
            raise
