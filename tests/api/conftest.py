"""A running server on real parts (both databases, both brokers). Nobody works but the test: see `workshop`.

`client` sends a token that may submit, `anonymous` none.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from services.settings import Settings
from tests.serving import RunningServer, Workshop, token


@pytest.fixture
def server(service_settings: Settings) -> Iterator[RunningServer]:
    with RunningServer(service_settings) as running:
        yield running


@pytest.fixture
def anonymous(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token(server.settings)}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def workshop(service_settings: Settings) -> Iterator[Workshop]:
    opened = Workshop(service_settings)
    yield opened
    opened.close()
