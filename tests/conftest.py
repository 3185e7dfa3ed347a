"""Fixtures for every test that needs a database, a broker or settings. Servers start when first asked for.

`service_settings`   settings on real parts, run twice: `embedded` (SQLite + filesystem broker) and `production`
                     (PostgreSQL + Valkey). The database is migrated and empty; `data_dir` is the test's own.
`embedded_settings`  the embedded pair only, for tests that have nothing to do with the database at hand.
`database_url`       the URL of a migrated, empty database, run twice: `sqlite` and `postgresql`.
`broker_url`         the URL of an empty broker, run twice: `filesystem` (an empty URL: it means a directory below
                     `data_dir`) and `redis`.
`make_settings`      builds settings for this test: `make_settings(database_url=…, broker_url=…, lease=…)`. Leases and
                     intervals are short, secrets are fixed.
`postgres_server`, `valkey_server`  the servers themselves, one of each per test process; use your own instance from
                     `tests.servers` if you want to kill it.
`rung`               the list of queues whose doorbell was rung through `database`.
`database`           a `services.database.Database` on `service_settings` whose doorbell writes into `rung`.

A PostgreSQL test gets its database by truncation, an SQLite test by copying a migrated file: a few milliseconds each.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from gradproof_probe import processes
from pydantic import SecretStr
from sqlalchemy import text

from services.database import Base, Database, build_engine
from services.database.migrate import upgrade
from services.settings import Settings
from tests.servers import PostgresServer, ValkeyServer

MakeSettings = Callable[..., Settings]
# For tests in which something has to run out by itself. Elsewhere nothing does, however slow the machine: a worker that
# is a row and reports once is not silent for half a minute.
QUICK = {
    "lease": timedelta(seconds=5),
    "heartbeat": timedelta(seconds=0.5),
    "reconcile_every": timedelta(seconds=0.5),
}
_TICK = 0.01  # seconds: what the kernel tells of a process's beginning is rounded down to that


@pytest.fixture(autouse=True)
def logging_is_left_alone() -> Iterator[None]:
    """The command line sets logging up for its process, which here is that of all tests."""
    yield
    structlog.reset_defaults()


class _Spared:
    """What a test of the probe in this process has not started is not below it: servers, browsers, pools of others."""

    def __init__(self) -> None:
        self.since = 0.0
        self._process = os.getpid()
        self._descendants = processes.descendants

    def descendants(self, of: int) -> list[int]:
        found = self._descendants(of)
        if os.getpid() != self._process:
            return found
        older = {pid for pid in found if self._began(pid) + _TICK < self.since}
        return [pid for pid in found if not older.intersection({pid, *self._above(pid)})]

    @staticmethod
    def _began(pid: int) -> float:
        """Seconds after the machine started; 0 for one that has ended."""
        try:
            stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0.0
        return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")

    def _above(self, pid: int) -> Iterator[int]:
        parents = processes._parents()
        while (pid := parents.get(pid, 0)) > 1 and pid != self._process:
            yield pid


@pytest.fixture(scope="session")
def spared() -> Iterator[_Spared]:
    found = _Spared()
    with pytest.MonkeyPatch.context() as patch:
        # The probe kills what is left below it, and here that is the test run.
        patch.setattr(processes, "descendants", found.descendants)
        yield found


@pytest.fixture(autouse=True)
def what_others_started_is_left_alone(spared: _Spared) -> None:
    spared.since = time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file to copy."""
    file = tmp_path_factory.mktemp("sqlite") / "template.sqlite3"
    upgrade(Settings(database_url=f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_postgres_url(postgres_server: PostgresServer) -> str:
    """A migrated PostgreSQL database; `postgres_url` empties it for each test."""
    url = postgres_server.create_database("gradproof")
    upgrade(Settings(database_url=url))
    return url


@pytest.fixture
def sqlite_url(migrated_sqlite_file: Path, tmp_path: Path) -> str:
    file = tmp_path / "database" / "gradproof.sqlite3"
    file.parent.mkdir()
    shutil.copy(migrated_sqlite_file, file)
    return f"sqlite:///{file}"


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    engine = build_engine(Settings(database_url=migrated_postgres_url))
    tables = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {tables} CASCADE"))
        # What the migrations put there.
        connection.execute(
            text(
                "INSERT INTO organisations (id, slug, name, created_at) VALUES ('default', 'default', 'Default', now())"
            )
        )
    engine.dispose()
    return migrated_postgres_url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def redis_url(valkey_server: ValkeyServer) -> str:
    valkey_server.flush()
    return valkey_server.url()


@pytest.fixture(params=["filesystem", "redis"])
def broker_url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "filesystem" else str(request.getfixturevalue("redis_url"))


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    def make(**changes: object) -> Settings:
        values: dict[str, object] = {
            "data_dir": tmp_path / "data",
            "secret_key": SecretStr("a secret for tests, 32 characters and more"),
            "lease": timedelta(hours=1),
            "heartbeat": timedelta(seconds=10),
            "reconcile_every": timedelta(minutes=1),
        }
        return Settings.model_validate(values | changes)

    return make


@pytest.fixture(params=["embedded", "production"])
def service_settings(request: pytest.FixtureRequest, make_settings: MakeSettings) -> Settings:
    if request.param == "embedded":
        return make_settings(database_url=request.getfixturevalue("sqlite_url"))
    return make_settings(
        database_url=request.getfixturevalue("postgres_url"), broker_url=request.getfixturevalue("redis_url")
    )


@pytest.fixture
def embedded_settings(make_settings: MakeSettings, sqlite_url: str) -> Settings:
    return make_settings(database_url=sqlite_url)


@pytest.fixture
def rung() -> list[str]:
    return []


@pytest.fixture
def database(service_settings: Settings, rung: list[str]) -> Iterator[Database]:
    opened = Database.open(service_settings, rung.append)
    yield opened
    opened.close()
