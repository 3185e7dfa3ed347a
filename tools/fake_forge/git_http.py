"""Git over smart HTTP: what `git http-backend` answers to one request."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Headers(Protocol):
    """Headers whose names are found in any case, of any server."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True)
class GitAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


def backend(root: Path, method: str, path: str, *, query: str, headers: Headers, body: bytes) -> GitAnswer:
    """Git's answer about the repositories below `root`; `path` begins with the repository's directory."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_PROTOCOL": headers.get("git-protocol") or "",
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": headers.get("content-type") or "",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": headers.get("content-encoding") or "",
        "REMOTE_ADDR": "127.0.0.1",
    }
    done = subprocess.run(
        ["git", "http-backend"],
        check=False,
        input=body,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    answered = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    status = int(answered.pop("Status", "200 OK").split()[0])
    return GitAnswer(status, answered, content)
