"""Clones and fetches over HTTP, of GitHub's repositories and GitLab's projects, with their tokens."""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Final

from fastapi import Request as HttpRequest
from fastapi import Response

from tools.fake_forge.exchange import Refusal
from tools.fake_forge.failures import Failure, Hold, Switches
from tools.fake_forge.git import GitRepository
from tools.fake_forge.git_http import backend
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.gitlab.hub import GitLabHub
from tools.fake_forge.gitlab.state import REPORTER, Project
from tools.fake_forge.world import Repository

_SERVICE: Final = re.compile(r"^/(?P<name>.+?)(?:\.git)?/(?P<service>info/refs|git-upload-pack|git-receive-pack)$")
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="Git"'}


class GitService:
    """Answers git. Private repositories want a token: GitHub's as the password of `x-access-token`."""

    def __init__(self, hub: Hub, gitlab: GitLabHub, switches: Switches, root: Path) -> None:
        self._hub = hub
        self._gitlab = gitlab
        self._switches = switches
        self._root = root

    def answer(self, http: HttpRequest, body: bytes) -> Response | None:
        """The answer; None where the connection is to be cut."""
        match = _SERVICE.match(http.url.path)
        if match is None:
            return Response(json.dumps(Refusal(404, "Not Found").body), 404, media_type="application/json")
        failure = self._switches.take(http.method, http.url.path)
        if isinstance(failure, Hold):
            failure.pass_through()
            failure = None
        response = _failed(failure) if failure else self._served(http, body, match["name"], match["service"])
        with self._hub.world.lock:
            self._hub.world.remember(
                method=http.method,
                path=http.url.path,
                query=dict(http.query_params),
                headers=http.headers,
                body=None,
                operation="git",
                status=response.status_code if response else None,
                failure=failure.name if failure else None,
            )
        return response

    def _served(self, http: HttpRequest, body: bytes, name: str, service: str) -> Response:
        try:
            with self._hub.world.lock:
                git = self._admitted(name, _password(http.headers.get("authorization")))
            if "git-receive-pack" in (service, http.query_params.get("service")):
                return Response("Write access to repository not granted.", 403, media_type="text/plain")
        except Refusal as refusal:
            return Response(str(refusal.args[0]), refusal.status, refusal.headers, "text/plain")
        path = f"/{git.path.name}/{service}"
        answer = backend(self._root, http.method, path, query=http.url.query, headers=http.headers, body=body)
        return Response(answer.body, answer.status, answer.headers)

    def _admitted(self, name: str, credentials: tuple[str, str] | None) -> GitRepository:
        world = self._hub.world
        repository = world.repository(name) or world.repositories.get(world.moved.get(name, -1))
        if repository is not None:
            return self._of_github(repository, credentials)
        project = self._gitlab.state.project(name)
        if project is not None:
            return self._of_gitlab(project, credentials)
        # Whether a private repository exists is nobody's business.
        raise _missing(credentials)

    def _of_github(self, repository: Repository, credentials: tuple[str, str] | None) -> GitRepository:
        if credentials is not None:
            user, password = credentials
            if user != "x-access-token":
                raise Refusal(401, "Invalid username or token.", headers=_CHALLENGE)
            try:
                token = self._hub.authentication.token(password)
            except Refusal as refusal:
                refusal.headers |= _CHALLENGE
                raise
            if repository.private and not token.covers(repository):
                raise _missing(credentials)
            if repository.private and "contents" not in token.permissions:
                raise Refusal(403, "Write access to repository not granted.")
        elif repository.private:
            raise _missing(None)
        return repository.git

    def _of_gitlab(self, project: Project, credentials: tuple[str, str] | None) -> GitRepository:
        if credentials is not None:
            try:
                user = self._gitlab.known(credentials[1])
            except Refusal as refusal:
                raise Refusal(401, "HTTP Basic: Access denied.", headers=_CHALLENGE) from refusal
            if project.private and project.level(user.username) < REPORTER:
                raise _missing(credentials)
        elif project.private:
            raise _missing(None)
        return project.git


def _failed(failure: Failure) -> Response | None:
    if failure.status is None:
        return None
    return Response(failure.message, failure.status, failure.headers)


def _missing(credentials: tuple[str, str] | None) -> Refusal:
    if credentials is None:
        return Refusal(401, "Repository not found.", headers=_CHALLENGE)
    return Refusal(404, "Repository not found.")


def _password(header: str | None) -> tuple[str, str] | None:
    """The user and the password of a Basic header. Raises `Refusal` for anything else that is there."""
    if not header:
        return None
    scheme, _, packed = header.partition(" ")
    try:
        user, colon, password = base64.b64decode(packed, validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, "Bad Request") from error
    if scheme.lower() != "basic" or not colon:
        raise Refusal(401, "Invalid username or token.", headers=_CHALLENGE)
    return user, password
