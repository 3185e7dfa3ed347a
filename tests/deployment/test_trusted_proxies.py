"""Whose word for a caller's address the server believes."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Network

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from api.cli import processes
from services.settings import Settings


@pytest.mark.parametrize(("peer", "believed"), [("172.18.0.1", True), ("192.0.2.9", False)])
def test_only_a_trusted_proxy_says_where_a_caller_is(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, peer: str, believed: bool
) -> None:
    settings = embedded_settings.model_copy(update={"trusted_proxies": (IPv4Network("172.16.0.0/12"),)})
    served: list[uvicorn.Config] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: served.append(server.config))
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)
    with processes._listen("127.0.0.1", 0) as listener:
        processes._serve_http(settings, listener)
    seen: list[str] = []

    async def application(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["client"][0])

    (configuration,) = served
    configuration.app = application
    configuration.load()
    scope = {"type": "http", "client": (peer, 1), "scheme": "http", "headers": [(b"x-forwarded-for", b"203.0.113.7")]}
    asyncio.run(configuration.loaded_app(scope, None, None))
    assert seen == ["203.0.113.7" if believed else peer]
