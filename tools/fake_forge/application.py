"""The fake as a FastAPI application: routes, aliases of addresses, git, and connections that are cut."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from tools.fake_forge.exchange import Operation, Reply
from tools.fake_forge.failures import Switches
from tools.fake_forge.gateway import Gateway, Request
from tools.fake_forge.git_service import GitService
from tools.fake_forge.github import apps, checks, comments, graphql, pulls, repositories, reviews, scanning
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.gitlab import notes, projects
from tools.fake_forge.gitlab.exchange import GitLabGateway, GitLabOperation
from tools.fake_forge.gitlab.hub import GitLabHub

_MODULES: Final = (apps, checks, comments, graphql, pulls, reviews, scanning, repositories)
_BY_NUMBER: Final = re.compile(r"^/repositories/(\d+)(/.*)?$")
_BY_PATH: Final = re.compile(r"^/api/v4/projects/([^/?]+)(/[^?]*)?$")
# Names that may have slashes in them.
_WITH_SLASHES: Final = re.compile(r"\{(branch|ref|basehead)\}")


def github_operations() -> list[Operation]:
    """All operations of the fake GitHub; those with more to their path come first, so that none hides another."""
    found = [operation for module in _MODULES for operation in module.operations.all]
    return sorted(found, key=lambda each: each.template.count("/"), reverse=True)


def create_application(hub: Hub, gitlab: GitLabHub, switches: Switches, git_root: Path) -> ASGIApp:
    """The whole application. It has no pages of documentation: a forge has none."""
    app = FastAPI(openapi_url=None)
    gateway = Gateway(hub, switches)
    for operation in github_operations():
        template = re.sub(_WITH_SLASHES, r"{\1:path}", operation.template)
        app.add_route(
            template, _endpoint(partial(gateway.answer, operation=operation), hub), methods=[operation.method]
        )
    gitlab_gateway = GitLabGateway(gitlab, switches)
    for other in _gitlab_operations():
        template = re.sub(_WITH_SLASHES, r"{\1:path}", other.template)
        app.add_route(template, _endpoint(partial(gitlab_gateway.answer, operation=other), hub), methods=[other.method])
    git = GitService(hub, gitlab, switches, git_root)

    async def serve_git(http: HttpRequest) -> Response:
        body = await http.body()
        return await run_in_threadpool(git.answer, http, body) or _NoAnswer()

    app.add_route("/{whole:path}", serve_git, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return _Outermost(app, hub, gitlab)


def _gitlab_operations() -> list[GitLabOperation]:
    found = [operation for module in (notes, projects) for operation in module.operations.all]
    return sorted(found, key=lambda each: each.template.count("/"), reverse=True)


def _endpoint(serve: Callable[..., Reply | None], hub: Hub) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(http: HttpRequest) -> Response:
        request = Request(
            method=http.method,
            path=http.url.path,
            query=dict(http.query_params),
            repeated={name: http.query_params.getlist(name) for name in http.query_params},
            headers=http.headers,
            body=await http.body(),
            base=f"{http.url.scheme}://{http.url.netloc}",
        )
        path = {name: str(value) for name, value in http.path_params.items()}
        reply = await run_in_threadpool(serve, request, path=path)
        return _NoAnswer() if reply is None else _response(reply, hub.world.clock.now())

    return answer


def _response(reply: Reply, now: datetime) -> Response:
    headers = {
        "server": "github.com",
        "date": format_datetime(now, usegmt=True),
        "x-github-media-type": "github.v3; format=json",
    } | reply.headers
    if reply.text is not None:
        kind = "text/html" if reply.text.startswith("<") else "text/plain"
        return Response(reply.text, reply.status, headers, kind)
    if reply.body is None:
        return Response(status_code=reply.status, headers=headers)
    content = json.dumps(reply.body, ensure_ascii=False).encode()
    return Response(content, reply.status, headers, "application/json; charset=utf-8")


class _Outermost:
    """Aliases by a repository's number, and a way to the connection for answers that cut it."""

    def __init__(self, app: ASGIApp, hub: Hub, gitlab: GitLabHub) -> None:
        self._app = app
        self._hub = hub
        self._gitlab = gitlab

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            cycle = send.__self__  # type: ignore[attr-defined]  # uvicorn's, of this request
            scope = {**scope, "path": self._path(scope), "forge.cycle": cycle}
        await self._app(scope, receive, send)

    def _path(self, scope: Scope) -> str:
        """GitHub's `/repositories/7` by name, and GitLab's `/projects/group%2Fname` by number."""
        path: str = scope["path"]
        if match := _BY_NUMBER.match(path):
            repository = self._hub.world.repositories.get(int(match[1]))
            return f"/repos/{repository.full_name}{match[2] or ''}" if repository else path
        if match := _BY_PATH.match(scope["raw_path"].decode("ascii")):
            project = self._gitlab.state.project(unquote(match[1]))
            return f"/api/v4/projects/{project.id if project else 0}{unquote(match[2] or '')}"
        return path


class _NoAnswer(Response):
    """Cuts the connection."""

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        cycle = scope["forge.cycle"]
        cycle.transport.abort()
        while not cycle.disconnected:
            await asyncio.sleep(0)
