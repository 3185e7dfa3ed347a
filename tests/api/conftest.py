"""An application on real parts (both databases, both brokers) with nobody working: what is submitted stays queued.

`client` sends a token that may submit; `anonymous` sends none. `work()` reads every queued snapshot and stores made-up
check results through the very use cases that a worker calls, so that reports have something to say.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from services.accounts.service import TokenService
from services.database import Database
from services.settings import Settings

Headers = dict[str, str]
MakeToken = Callable[..., str]

MODULE = """\
import torch


class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()
"""


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """A .tar.gz of these files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def upload(files: Mapping[str, str | bytes] | None = None, name: str = "repository.tar.gz") -> dict[str, object]:
    """The `files` argument of a POST that uploads these files."""
    return {"archive": (name, packed(files or {"pkg/a.py": MODULE}))}


@pytest.fixture
def app(service_settings: Settings) -> FastAPI:
    return create_app(service_settings)


@pytest.fixture
def make_token(service_settings: Settings) -> MakeToken:
    def make(scope: str = "submit", **changes: object) -> str:
        database = Database.open(service_settings, lambda _queue: None)
        try:
            return TokenService(database, service_settings).create("test", [scope], **changes).text  # type: ignore[arg-type]
        finally:
            database.close()

    return make


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://gradproof.test", follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(anonymous: TestClient, make_token: MakeToken) -> TestClient:
    anonymous.headers["Authorization"] = f"Bearer {make_token()}"
    return anonymous


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path
