"""A forge that says what a test tells it to, over real HTTP: for answers that no well-behaved forge gives.

What a forge does with what it is told is the fake forge's affair (`tools.fake_forge`).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class StoodClock:
    """Stands still but for what is slept; `slept` is each pause in seconds."""

    def __init__(self, now: datetime = START) -> None:
        self.time = now
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer. `cut`: the connection ends after the head and half of the body; `silent`: before anything is said."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    silent: bool = False

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Heard:
    """A request as it came in. Header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return json.loads(self.body)


Script = Callable[[Heard], Said]


class ScriptedForge:
    """Answers each request with the next of its answers (the last one again and again), or by a function."""

    def __init__(self, *answers: Said, script: Script | None = None) -> None:
        self.heard: list[Heard] = []
        self._answers = list(answers)
        self._script = script
        forge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                heard = Heard(
                    self.command,
                    self.path,
                    {name.lower(): value for name, value in self.headers.items()},
                    self.rfile.read(length),
                )
                forge.heard.append(heard)
                self._say(forge.answer(heard))

            def _say(self, said: Said) -> None:
                if said.silent:
                    self._cut()
                    return
                content = said.content()
                self.send_response(said.status)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if said.cut else content)
                if said.cut:
                    self._cut()

            def _cut(self) -> None:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

            def log_message(self, *arguments: object) -> None:
                """Nothing: a test looks at `heard`."""

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - so they are looked for

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that goes away in the middle of an answer is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, heard: Heard) -> Said:
        if self._script is not None:
            return self._script(heard)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
