"""The application over real HTTP and real HTTPS, by uvicorn in one thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path
from typing import Final

import trustme
import uvicorn
from starlette.types import ASGIApp

HOST_NAMES: Final = ("127.0.0.1", "localhost", "forge.example")
_PATIENCE_S: Final = 20.0


class _Server(uvicorn.Server):
    """Waits for being told to stop, where uvicorn looks every 0.1 s whether it was."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self._stopping.wait()
        self.force_exit = True  # clients keep their connections: they are not waited for

    def stop(self) -> None:
        self._stopping.set()


class Serving:
    """Two ports of the loopback, one plain and one under a certificate of our own authority."""

    def __init__(self, directory: Path, *, port: int = 0, secure_port: int = 0) -> None:
        self._plain, self._secure = _listening(port), _listening(secure_port)
        self.url = f"http://127.0.0.1:{self._plain.getsockname()[1]}"
        self.secure_url = f"https://127.0.0.1:{self._secure.getsockname()[1]}"
        self.authority = directory / "authority.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        self._certificate = directory / "certificate.pem"
        authority.issue_cert(*HOST_NAMES).private_key_and_cert_chain_pem.write_to_path(str(self._certificate))
        self._servers: list[_Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()

    def start(self, app: ASGIApp) -> None:
        """Serve until `close`. Raises `RuntimeError` when the servers don't come up."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(app)), daemon=True)
        self._thread.start()
        if not self._ready.wait(_PATIENCE_S) or not all(server.started for server in self._servers):
            raise RuntimeError("the fake forge did not come up")

    def close(self) -> None:
        """Stop, without waiting for clients that keep their connections."""
        if self._loop is not None and self._thread is not None:
            for server in self._servers:
                self._loop.call_soon_threadsafe(server.stop)
            self._thread.join(_PATIENCE_S)
            self._thread = None
        self._plain.close()
        self._secure.close()

    async def _serve(self, app: ASGIApp) -> None:
        self._loop = asyncio.get_running_loop()
        # The forge has a clock of its own, and says so itself.
        plain = uvicorn.Config(
            app, log_config=None, lifespan="off", server_header=False, date_header=False, http="h11", ws="none"
        )
        secure = uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            server_header=False,
            date_header=False,
            http="h11",
            ws="none",
            ssl_certfile=str(self._certificate),
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
        )
        self._servers = [_Server(plain), _Server(secure)]
        sockets = (self._plain, self._secure)
        tasks = [
            asyncio.create_task(server.serve([listening]))
            for server, listening in zip(self._servers, sockets, strict=True)
        ]
        while not all(server.started for server in self._servers) and not any(task.done() for task in tasks):
            await asyncio.sleep(0.002)
        self._ready.set()
        await asyncio.gather(*tasks)


def _listening(port: int) -> socket.socket:
    listening = socket.create_server(("127.0.0.1", port))
    # asyncio sets it for sockets that name TCP as their protocol; these don't, and answers came 40 ms late.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
