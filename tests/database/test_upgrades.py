"""An upgrade changes tables under rows that are there, and loses none of them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import text

from services.database import build_engine
from services.database.migrate import alembic_configuration, differences, upgrade
from services.settings import Settings
from tests.servers import PostgresServer

NOW = "2026-01-01 00:00:00+00:00"
ROWS = (
    "INSERT INTO analyses (id, status, options, source_kind, created_at, tool)"
    f" VALUES ('a', 'running', '{{}}', 'archive', '{NOW}', '{{}}')",
    "INSERT INTO targets (id, analysis_id, position, name, kind, path, line, end_line, import_root, module, qualname,"
    " hypotheses) VALUES ('t', 'a', 0, 'a:b', 'module', 'a.py', 1, 1, '', 'a', 'b', '[]')",
    "INSERT INTO jobs (id, analysis_id, target_id, kind, queue, device_class, checks, idempotency_key, state, attempt,"
    " losses, max_attempts, created_at)"
    f" VALUES ('j', 'a', 't', 'probe', 'cpu', 'cpu', '[]', 'k', 'queued', 0, 0, 3, '{NOW}')",
    "INSERT INTO check_results (id, analysis_id, target_id, job_id, check_name, verdict, device, summary, evidence,"
    f" duration_s, created_at) VALUES ('c', 'a', 't', 'j', 'gradcheck', 'pass', 'cpu', '', '{{}}', 0, '{NOW}')",
)


def test_results_of_the_version_before_examples_are_kept(tmp_path: Path, postgres_server: PostgresServer) -> None:
    name = "upgraded"
    for url in (f"sqlite:///{tmp_path / 'upgraded.sqlite3'}", postgres_server.create_database(name)):
        settings = Settings(database_url=url)
        engine = build_engine(settings)
        with engine.begin() as connection:
            command.upgrade(alembic_configuration(connection), "0002")
        with engine.begin() as connection:
            for statement in ROWS:
                connection.execute(text(statement.replace(":00", r"\:00")))
        upgrade(settings)
        with engine.begin() as connection:
            for table in ("analyses", "targets", "jobs", "check_results"):
                assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 1, table
            connection.execute(text("UPDATE jobs SET kind = 'examples'"))
        engine.dispose()
        assert differences(settings) == []
    postgres_server.drop_database(name)


def test_findings_of_the_main_line_are_there_since_they_were_first_seen(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    name = "since"
    columns = (
        "id, project_id, fingerprint, state, reason, occurrences, rule, name, severity, severity_rank, path, line,"
        " symbol, message, verdict, on_main, first_seen_at, last_seen_at"
    )
    for url in (f"sqlite:///{tmp_path / 'since.sqlite3'}", postgres_server.create_database(name)):
        settings = Settings(database_url=url)
        engine = build_engine(settings)
        with engine.begin() as connection:
            command.upgrade(alembic_configuration(connection), "0009")
        with engine.begin() as connection:
            connection.execute(
                text("INSERT INTO projects (id, name, created_at) VALUES ('p', 'p', :now)"), {"now": NOW}
            )
            for key, on_main in (("there", "true"), ("proposed", "false")):
                values = f"'{key}', 'p', '{key}', 'open', '', 0, 'r', 'n', 'error', 0, 'a.py', 1, '', '', 'static'"
                connection.execute(
                    text(f"INSERT INTO project_findings ({columns}) VALUES ({values}, {on_main}, :now, :now)"),
                    {"now": NOW},
                )
        upgrade(settings)
        with engine.begin() as connection:
            since = connection.execute(
                text("SELECT id FROM project_findings WHERE main_since = first_seen_at AND main_since IS NOT NULL")
            )
            assert since.scalars().all() == ["there"]
        engine.dispose()
    postgres_server.drop_database(name)
