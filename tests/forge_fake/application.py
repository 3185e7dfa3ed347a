"""An App's side of the forge, written apart from the product: a thin client, and a receiver of webhooks."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import httpx
from joserfc import jwt
from joserfc.jwk import RSAKey

from tools.fake_forge import FakeForge


class App:
    """Sends requests as the App (`as_app`) or as its installation (the rest)."""

    def __init__(self, forge: FakeForge, owner: str = "octo") -> None:
        self.forge = forge
        self.owner = owner
        self.http = httpx.Client(base_url=forge.url, timeout=20, verify=False)  # plain HTTP: no authorities to read
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def jwt(self, *, issued: int = -60, expires: int = 540, issuer: object = None, key: RSAKey | None = None) -> str:
        """A JWT of the App; times are seconds from the forge's now."""
        now = int(self.forge.clock.now().timestamp())
        claims = {"iat": now + issued, "exp": now + expires, "iss": issuer or str(self.forge.app_id)}
        return jwt.encode({"alg": "RS256"}, claims, key or RSAKey.import_key(self.forge.private_key))

    def as_app(self, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.jwt()}"}
        return self.http.request(method, path, headers=headers, **more)

    def new_token(self, **narrowing: Any) -> httpx.Response:
        installation = self.forge.installation(self.owner).id
        return self.as_app("POST", f"/app/installations/{installation}/access_tokens", json=narrowing or None)

    @property
    def token(self) -> str:
        """An installation token, fetched when first asked for."""
        if not self._token:
            self._token = self.new_token().json()["token"]
        return self._token

    def use(self, token: str) -> None:
        """Send requests with this token from now on."""
        self._token = token

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        return self.http.request(method, path, headers=headers, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: object = None) -> httpx.Response:
        return self.ask("POST", path, json=body)

    def patch(self, path: str, body: object) -> httpx.Response:
        return self.ask("PATCH", path, json=body)

    def delete(self, path: str) -> httpx.Response:
        return self.ask("DELETE", path)

    def graphql(self, query: str, **variables: object) -> dict[str, Any]:
        answer = self.post("/graphql", {"query": query, "variables": variables})
        assert answer.status_code == 200
        return answer.json()  # type: ignore[no-any-return]


def git(forge: FakeForge, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run git with the forge's authority, and with an installation's token in a header."""
    options = []
    if token is not None:
        basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        options = ["-c", f"http.extraHeader=Authorization: Basic {basic}"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "GIT_SSL_CAINFO": str(forge.authority),
    }
    return subprocess.run(["git", *options, *arguments], check=False, capture_output=True, text=True, env=environment)


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Keeps webhooks; answers with `status`, after `meanwhile` was called."""

    status: int = 202
    got: list[Received] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                # Header values are bytes on the wire; the standard library reads them as Latin-1.
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Received(self.path, headers, body))
                receiver.meanwhile()
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


LINES = "".join(f"line {number}\n" for number in range(1, 41))


def changed(*numbers: int) -> str:
    """The forty lines, with these numbers written anew."""
    lines = LINES.splitlines()
    return "".join(f"{'new ' if place in numbers else ''}{text}\n" for place, text in enumerate(lines, start=1))
