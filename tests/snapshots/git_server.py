"""A git server of our own: `git http-backend` behind a small threaded https server on 127.0.0.1.

Real git speaks to real git over real TLS; only the name server and the certificate authority are ours.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from tools.fake_forge.git_http import backend

HOST_NAME = "forge.example"


@dataclass
class GitServer:
    """A running server. `root` holds the repositories; `requests` are the paths asked for, in order.

    `private` are first parts of paths that ask for this `Authorization`.
    """

    root: Path
    port: int
    authority: Path
    requests: list[str] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    private: dict[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def url(self, repository: str, host: str = "127.0.0.1") -> str:
        return f"https://{host}:{self.port}/{repository}"


class _Handler(BaseHTTPRequestHandler):
    """Answers `redirects`, `statuses` and `stalled` by the first part of the path, and git for all else."""

    protocol_version = "HTTP/1.1"
    git: GitServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, body: bytes) -> None:
        self.git.requests.append(self.path)
        top = self.path.split("/")[1]
        if top in self.git.stalled:
            self.git.stopping.wait()
            self.close_connection = True
        elif self.headers.get("Authorization") != self.git.private.get(top, self.headers.get("Authorization")):
            self._plain(401, {"WWW-Authenticate": 'Basic realm="git"'})
        elif top in self.git.redirects:
            self._plain(302, {"Location": self.git.redirects[top] + self.path.removeprefix(f"/{top}")})
        elif top in self.git.statuses:
            self._plain(self.git.statuses[top], {"Content-Type": "text/html"}, b"<html>\n</html>\n")
        else:
            self._git(body)

    def _plain(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _git(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        answer = backend(self.git.root, self.command, parts.path, query=parts.query, headers=self.headers, body=body)
        self._plain(answer.status, answer.headers, answer.body)

    def log_message(self, *_: object) -> None:
        """Say nothing: `requests` is what tests read."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or refuses the certificate is what some tests are about."""


@contextmanager
def serve(root: Path, *, names: tuple[str, ...] = ("127.0.0.1", HOST_NAME)) -> Iterator[GitServer]:
    """Serve the repositories below `root`; the certificate is good for `names`."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    authority_file = root / "authority.pem"
    authority.cert_pem.write_to_path(str(authority_file))
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    git = GitServer(root, server.server_address[1], authority_file)
    handler.git = git  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield git
    finally:
        git.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
