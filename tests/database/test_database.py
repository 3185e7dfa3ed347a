"""The database layer on both databases: migrations, the unit of work, ids, moments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import IntegrityError, StatementError

from services.analyses.models import AnalysisRow
from services.database import Database, DatabaseUnavailableError, SchemaOutdatedError, build_engine, new_id
from services.database.base import FromNow
from services.database.migrate import differences, require_current, upgrade
from services.jobs.models import LeaseRow
from services.projects.models import ProjectRow
from services.settings import Settings
from tests.servers import PostgresServer


@pytest.fixture
def rows(database_url: str) -> Iterator[Database]:
    database = Database.open(Settings(database_url=database_url), lambda _queue: None)
    yield database
    database.close()


def test_migrations_bring_exactly_the_tables_of_the_models(database_url: str) -> None:
    assert differences(Settings(database_url=database_url)) == []


def test_a_forgotten_migration_would_be_noticed(rows: Database, database_url: str) -> None:
    with rows.unit_of_work() as uow:
        uow.session.execute(text("ALTER TABLE projects ADD COLUMN forgotten VARCHAR"))
    try:
        assert len(differences(Settings(database_url=database_url))) == 1
    finally:
        with rows.unit_of_work() as uow:
            uow.session.execute(text("ALTER TABLE projects DROP COLUMN forgotten"))


def test_migrations_can_be_undone_and_redone(tmp_path: Path, postgres_server: PostgresServer) -> None:
    from alembic import command  # noqa: PLC0415

    from services.database.migrate import alembic_configuration  # noqa: PLC0415

    name = "undone"
    for url in (f"sqlite:///{tmp_path / 'undone.sqlite3'}", postgres_server.create_database(name)):
        settings = Settings(database_url=url)
        upgrade(settings)
        engine = build_engine(settings)
        with engine.begin() as connection:
            command.downgrade(alembic_configuration(connection), "base")
        assert inspect(engine).get_table_names() == ["alembic_version"]
        engine.dispose()
        upgrade(settings)
        assert differences(settings) == []
    postgres_server.drop_database(name)


def test_upgrades_that_start_together_wait_for_each_other(tmp_path: Path, postgres_server: PostgresServer) -> None:
    name = "together"
    for url in (f"sqlite:///{tmp_path / 'together.sqlite3'}", postgres_server.create_database(name)):
        settings = Settings(database_url=url)
        failures: list[BaseException] = []

        def migrate(settings: Settings = settings, failures: list[BaseException] = failures) -> None:
            try:
                upgrade(settings)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=migrate) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        require_current(settings)
    postgres_server.drop_database(name)


def test_tables_of_no_version_are_refused_with_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(SchemaOutdatedError, match="gradproof db upgrade"):
        require_current(Settings(database_url=f"sqlite:///{tmp_path / 'empty.sqlite3'}"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", "SQLite and PostgreSQL"),
        ("sqlite://", "name a file"),
        ("no url at all", "not a database URL"),
    ],
)
def test_an_unusable_database_url_is_refused_by_name(url: str, message: str) -> None:
    with pytest.raises(DatabaseUnavailableError, match=message):
        build_engine(Settings(database_url=url))


def test_an_unreachable_server_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailableError):
        upgrade(Settings(database_url=f"postgresql://postgres@/gradproof?host={tmp_path}"))


def test_doorbells_ring_after_the_commit_and_only_then(database_url: str) -> None:
    seen: list[tuple[str, int]] = []
    settings = Settings(database_url=database_url)
    witness = Database.open(settings, lambda _queue: None)

    def ring(queue: str) -> None:
        with witness.reading() as session:
            seen.append((queue, len(session.scalars(select(ProjectRow)).all())))

    database = Database.open(settings, ring)
    with database.unit_of_work() as uow:
        uow.session.add(ProjectRow(name="one"))
        uow.ring("cpu", times=2)
        assert seen == []
    assert seen == [("cpu", 1), ("cpu", 1)]

    def change_my_mind() -> None:
        with database.unit_of_work() as uow:
            uow.session.add(ProjectRow(name="two"))
            uow.ring("cpu")
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        change_my_mind()
    assert len(seen) == 2
    with witness.reading() as session:
        assert [row.name for row in session.scalars(select(ProjectRow))] == ["one"]
    database.close()
    witness.close()


def test_a_broken_doorbell_does_not_undo_the_work(database_url: str) -> None:
    def ring(_queue: str) -> None:
        raise ConnectionError("no broker")

    database = Database.open(Settings(database_url=database_url), ring)
    with database.unit_of_work() as uow:
        uow.session.add(ProjectRow(name="kept"))
        uow.ring("cpu")
    with database.reading() as session:
        assert session.scalars(select(ProjectRow.name)).all() == ["kept"]
    database.close()


def test_a_moment_comes_back_in_utc_and_a_naive_one_is_refused(rows: Database) -> None:
    at_noon_in_tokyo = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=9)))
    with rows.unit_of_work() as uow:
        uow.session.add(ProjectRow(id="tokyo", name="tokyo", created_at=at_noon_in_tokyo))
    with rows.reading() as session:
        stored = session.get_one(ProjectRow, "tokyo").created_at
    assert stored == at_noon_in_tokyo
    assert stored.tzinfo is UTC
    with pytest.raises(StatementError, match="time zone"), rows.unit_of_work() as uow:
        uow.session.add(ProjectRow(name="naive", created_at=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_text_that_no_database_takes_costs_a_character_and_not_a_row(rows: Database) -> None:
    odd = "a\x00b\ud800c\N{PILE OF POO}"
    with rows.unit_of_work() as uow:
        analysis = AnalysisRow(source_kind="archive", options={odd: [odd, "\\u0000"]}, reason=odd)
        uow.session.add(analysis)
    with rows.reading() as session:
        stored = session.get_one(AnalysisRow, analysis.id)
    assert stored.reason == "a\ufffdb\ufffdc\N{PILE OF POO}"
    assert stored.options == {odd: [odd, "\\u0000"]}


def test_leases_are_set_and_compared_by_the_clock_of_the_database(rows: Database) -> None:
    with rows.unit_of_work() as uow:
        uow.session.add(LeaseRow(name="past", holder="x", until=FromNow(timedelta(seconds=-1))))
        uow.session.add(LeaseRow(name="future", holder="x", until=FromNow(timedelta(seconds=60))))
    with rows.reading() as session:
        assert session.scalars(select(LeaseRow.name).where(LeaseRow.until < FromNow())).all() == ["past"]
        until = session.get_one(LeaseRow, "future").until
    assert abs((until - datetime.now(UTC)).total_seconds() - 60) < 30


def test_foreign_keys_hold(rows: Database) -> None:
    with pytest.raises(IntegrityError), rows.unit_of_work() as uow:
        uow.session.add(AnalysisRow(source_kind="archive", snapshot_digest="sha256:unknown"))


def test_writers_wait_for_each_other_even_if_they_read_first(rows: Database) -> None:
    """On SQLite, deferred transactions would fail with "database is locked" here."""
    with rows.unit_of_work() as uow:
        uow.session.add(ProjectRow(id="count", name="0"))

    def increment() -> None:
        for _ in range(20):
            with rows.unit_of_work() as uow:
                row = uow.session.get_one(ProjectRow, "count", with_for_update=True)
                row.name = str(int(row.name) + 1)

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with rows.reading() as session:
        assert session.get_one(ProjectRow, "count").name == "80"


def test_identifiers_grow_and_share_no_guessable_part() -> None:
    ids = [new_id() for _ in range(2_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 2_000
    assert all(len(identifier) == 27 for identifier in ids)
    assert len({identifier[-16:] for identifier in ids}) == 2_000
