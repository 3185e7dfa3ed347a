"""Old analyses go with all that is theirs, and only those to which nobody will come back. On both databases."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import typer
from sqlalchemy import delete, func, select, text, update
from typer.testing import CliRunner

from api.cli.administration import register
from services.analyses.models import AnalysisRow, Purpose
from services.checks.models import CheckResultRow, TargetRow
from services.database import Base, Database
from services.database.base import utc_now
from services.findings.models import FindingRow, SuppressionRow
from services.forges.models import PullRequestRow
from services.jobs.models import JobRow
from services.projects.models import HookDeliveryRow, HookRow, ProjectRow, ShareLinkRow
from services.retention import Keep, RetentionService
from services.retention.service import ANALYSES_A_ROUND
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from services.snapshots.models import SnapshotRow
from services.triage.models import ProjectFindingRow
from tests.jobs.support import Bench, check
from tests.team_rows import Rows, days_ago

MONTH = Keep(timedelta(days=30), 0)


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


@pytest.fixture
def retention(database: Database, service_settings: Settings) -> RetentionService:
    return RetentionService(database, SnapshotStore(service_settings.snapshot_dir))


def old(rows: Rows, project: str | None = None, **columns: Any) -> str:
    """An analysis of a proposal that ended two months ago."""
    values: dict[str, Any] = {"purpose": Purpose.PROPOSAL, "finished_at": days_ago(60), "created_at": days_ago(60)}
    return rows.analysis(project, **values | columns)


def kept(database: Database) -> set[str]:
    with database.reading() as session:
        return set(session.scalars(select(AnalysisRow.id)))


def drop(retention: RetentionService, keep: Keep = MONTH) -> int:
    """To the end; what a preview said before is what was done."""
    promised = retention.preview(keep).analyses
    dropped = 0
    for _ in range(100):
        done = retention.drop(keep)
        dropped += done.analyses
        if not done.more:
            break
    assert dropped == promised
    assert retention.preview(keep).analyses == 0
    return dropped


def test_an_old_analysis_goes_with_all_that_is_its_own(bench: Bench, rows: Rows, retention: RetentionService) -> None:
    def left() -> dict[str, int]:
        tables = (AnalysisRow, JobRow, TargetRow, CheckResultRow, FindingRow, SuppressionRow)
        with bench.database.reading() as session:
            return {
                table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables
            }

    kept_id = rows.analysis()
    before = left()
    analysis_id = bench.submit_and_read(targets=2, findings=1)
    for claim in bench.claim():
        bench.results.check(claim, check())
        bench.results.probed(claim)
    assert left() == {
        "analyses": 2, "jobs": 3, "targets": 2, "check_results": 2, "findings": 1, "suppressions": 1,
    }  # fmt: skip
    assert drop(retention) == 0
    with bench.database.unit_of_work() as uow:
        uow.session.execute(update(AnalysisRow).where(AnalysisRow.id == analysis_id).values(finished_at=days_ago(31)))
    assert drop(retention) == 1
    assert left() == before
    assert kept(bench.database) == {kept_id}


def test_nothing_goes_where_everything_is_kept_and_nothing_that_runs(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    old(rows)
    running = rows.analysis(passed=None, created_at=days_ago(90))
    assert drop(retention, Keep(None, 0)) == 0
    assert drop(retention) == 1
    assert kept(database) == {running}


def test_of_each_project_so_many_are_kept_the_newest(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    vision, audio = rows.project("vision"), rows.project("audio")
    mine = [rows.analysis(vision, purpose=Purpose.PROPOSAL) for _ in range(4)]
    others = [rows.analysis(audio, purpose=Purpose.PROPOSAL) for _ in range(2)]
    nobodys = [rows.analysis() for _ in range(3)]
    assert drop(retention, Keep(None, 2)) == 3
    assert kept(database) == {*mine[2:], *others, *nobodys[1:]}


def test_more_than_one_round_holds_goes_in_several(database: Database, rows: Rows, retention: RetentionService) -> None:
    for _ in range(ANALYSES_A_ROUND + 3):
        old(rows)
    first = retention.drop(MONTH)
    assert (first.analyses, first.more) == (ANALYSES_A_ROUND, True)
    assert drop(retention) == 3
    assert kept(database) == set()


def test_the_newest_of_the_main_line_is_kept_and_the_newest_that_was_settled(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    project = rows.project("vision")
    baseline = old(rows, project, purpose=Purpose.MAIN)
    rows.add(ProjectRow(name="audio", baseline_id=baseline))
    gone, settled, failed = (old(rows, project, purpose=Purpose.MAIN, status=status) for status in
                             ("finished", "partial", "failed"))  # fmt: skip
    proposal = old(rows, project)
    assert drop(retention) == 2
    assert kept(database) == {baseline, settled, failed}
    assert {gone, proposal} & kept(database) == set()


def test_the_base_of_what_is_kept_is_kept_and_the_base_of_that(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    lowest = old(rows)
    low = old(rows, base_id=lowest)
    new = rows.analysis(base_id=low)
    unneeded_base = old(rows)
    unneeded = old(rows, base_id=unneeded_base)
    assert drop(retention) == 2
    assert kept(database) == {lowest, low, new}
    assert unneeded not in kept(database)


@pytest.mark.parametrize(
    ("columns", "events", "stays"),
    [
        ({"state": "accepted", "decided_at": days_ago(50)}, (), True),
        ({"state": "open"}, ("user",), True),
        ({"state": "open"}, ("system",), False),
        ({"state": "fixed"}, (), False),
    ],
)
def test_where_a_finding_was_last_seen_that_somebody_decided_about_is_kept(
    rows: Rows,
    retention: RetentionService,
    columns: dict[str, Any],
    events: tuple[str, ...],
    stays: bool,
) -> None:
    project = rows.project("vision")
    analysis_id = old(rows, project)
    fingerprint = rows.finding(project, first_analysis_id=analysis_id, last_analysis_id=analysis_id, **columns)
    with rows.database.reading() as session:
        finding_id = session.scalars(select(ProjectFindingRow.id)).one()
    for actor in events:
        rows.event(finding_id, "comment", actor_kind=actor)
    assert drop(retention) == (0 if stays else 1)
    with rows.database.reading() as session:
        finding = session.scalars(select(ProjectFindingRow).where(ProjectFindingRow.fingerprint == fingerprint)).one()
    assert (finding.first_analysis_id, finding.last_analysis_id) == ((analysis_id,) * 2 if stays else (None,) * 2)


def test_what_an_open_pull_request_shows_is_kept(database: Database, rows: Rows, retention: RetentionService) -> None:
    repository = rows.repository(rows.project("vision"))
    of_open, base_of_open, of_closed, base_of_closed = (old(rows) for _ in range(4))
    rows.pull_request(repository, number=1, analysis_id=of_open, base_analysis_id=base_of_open)
    rows.pull_request(repository, number=2, analysis_id=of_closed, base_analysis_id=base_of_closed, state="merged")
    assert drop(retention) == 2
    assert kept(database) == {of_open, base_of_open}
    with database.reading() as session:
        closed = session.scalars(select(PullRequestRow).where(PullRequestRow.number == 2)).one()
    assert (closed.analysis_id, closed.base_analysis_id) == (None, None)


def test_what_a_link_shows_is_kept_until_the_link_ends(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    shown, over, revoked = (old(rows) for _ in range(3))
    for analysis_id, ends, taken_back in ((shown, -1, None), (over, 1, None), (revoked, -1, utc_now())):
        rows.add(
            ShareLinkRow(analysis_id=analysis_id, created_by="x", expires_at=days_ago(ends), revoked_at=taken_back)
        )
    assert drop(retention) == 2
    assert kept(database) == {shown}


def test_calls_of_hooks_and_links_that_are_long_over_go(
    database: Database, rows: Rows, retention: RetentionService
) -> None:
    hook = rows.add(HookRow(project_id=rows.project("vision"), url="https://example.com", events=["ended"]))
    analysis_id = rows.analysis()
    for days, due in ((40, None), (40, utc_now()), (10, None)):
        rows.add(HookDeliveryRow(hook_id=hook, event="ended", created_at=days_ago(days), due_at=due))
    for days in (40, 10):
        rows.add(ShareLinkRow(analysis_id=analysis_id, created_by="x", expires_at=days_ago(days)))
    assert retention.drop(MONTH).leftovers == {"calls of hooks": 1, "share links": 1}
    assert retention.drop(MONTH).leftovers == {}


def test_the_reconciler_drops_a_little_and_looks_again_after_a_while(bench: Bench, rows: Rows) -> None:
    patient = bench.with_settings(retention=30)
    for _ in range(ANALYSES_A_ROUND + 1):
        old(rows)
    counts = [dropped.analyses if dropped is not None else None for dropped in
              (patient.reconciler.tick().dropped for _ in range(3))]  # fmt: skip
    assert counts == [ANALYSES_A_ROUND, 1, None]


def test_a_snapshot_goes_when_nothing_refers_to_it_and_it_was_not_stored_for_a_while(
    bench: Bench, retention: RetentionService, rows: Rows, tmp_path: Path
) -> None:
    store = SnapshotStore(bench.settings.snapshot_dir)
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    with read_directory(tmp_path) as tree:
        snapshot = store.put(tree)
    analysis_id = bench.analyses.submit(snapshot).analysis_id
    bench.analyses.cancel(analysis_id)
    make_old(bench, store)
    assert retention.drop(MONTH).snapshots == 0
    with bench.database.unit_of_work() as uow:
        uow.session.execute(update(AnalysisRow).values(finished_at=days_ago(31)))
    assert retention.preview(MONTH).snapshots == 1
    assert retention.drop(MONTH).snapshots == 1
    assert store.digests() == ()
    # As if it had never been there.
    with read_directory(tmp_path) as tree:
        assert bench.analyses.submit(store.put(tree)).created
    assert retention.drop(MONTH).snapshots == 0


def make_old(bench: Bench, store: SnapshotStore) -> None:
    """What time does to snapshots that nobody stores again."""
    for digest in store.digests():
        os.utime(store.path(digest), (0, 0))
    with bench.database.unit_of_work() as uow:
        uow.session.execute(update(SnapshotRow).values(created_at=days_ago(1)))


def test_files_that_no_analysis_ever_had_go(retention: RetentionService, bench: Bench, tmp_path: Path) -> None:
    store = SnapshotStore(bench.settings.snapshot_dir)
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    with read_directory(tmp_path) as tree:
        store.put(tree)
    assert retention.drop(MONTH).snapshots == 0
    make_old(bench, store)
    assert retention.drop(MONTH).snapshots == 1


def test_a_snapshot_that_is_submitted_while_it_is_dropped_is_there_for_its_analysis(
    bench: Bench, retention: RetentionService, tmp_path: Path
) -> None:
    """Whichever comes first: it is dropped and then stored anew, or kept because it was stored again."""
    store = SnapshotStore(bench.settings.snapshot_dir)
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    with read_directory(tmp_path) as tree, ThreadPoolExecutor(2) as pool:
        for _ in range(40):
            store.put(tree)
            make_old(bench, store)
            begin = Barrier(2)

            def submit(begin: Barrier = begin) -> str:
                begin.wait()
                return bench.analyses.submit(store.put(tree)).analysis_id

            def tidy(begin: Barrier = begin) -> None:
                begin.wait()
                retention.drop(MONTH)

            submitting, tidying = pool.submit(submit), pool.submit(tidy)
            analysis_id = submitting.result()
            tidying.result()
            digest = bench.analyses.get(analysis_id).snapshot_digest
            assert digest is not None
            store.verify(digest)
            bench.analyses.cancel(analysis_id)
            with bench.database.unit_of_work() as uow:
                uow.session.execute(delete(AnalysisRow))


def test_an_operator_sees_what_would_go_and_lets_it_go(
    rows: Rows, service_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.administration.read_settings", lambda: service_settings)
    app = typer.Typer()
    register(app)
    for _ in range(ANALYSES_A_ROUND + 5):
        old(rows)
    recent = rows.analysis()

    def say(*words: str) -> str:
        return CliRunner().invoke(app, ["db", "prune", *words]).output

    told = f"{ANALYSES_A_ROUND + 5} analyses and 0 snapshots"
    assert f"{told} would be dropped." in say("--older-than", "59", "--dry-run")
    assert "0 analyses" in say("--older-than", "61", "--dry-run")
    assert len(kept(rows.database)) == ANALYSES_A_ROUND + 6
    assert f"Dropped {told}." in say("--older-than", "59")
    assert kept(rows.database) == {recent}


def test_every_table_that_refers_to_an_analysis_is_thought_of(database: Database) -> None:
    """A new column that names an analysis has to be dropped with it, forget it, or keep it: see the repository."""
    import services.tables  # noqa: F401, PLC0415 - all of them

    columns = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if column.name.endswith("analysis_id")
        or any(key.column.table.name == "analyses" for key in column.foreign_keys)
    }
    assert columns | {"projects.baseline_id"} == {
        "analyses.base_id",
        "check_results.analysis_id",
        "findings.analysis_id",
        "hook_deliveries.analysis_id",
        "idempotency_keys.analysis_id",
        "jobs.analysis_id",
        "project_findings.first_analysis_id",
        "project_findings.last_analysis_id",
        "projects.baseline_id",
        "pull_requests.analysis_id",
        "pull_requests.base_analysis_id",
        "share_links.analysis_id",
        "suppressions.analysis_id",
        "targets.analysis_id",
    }


def test_what_drops_an_analysis_reads_no_table_as_a_whole(embedded_settings: Settings) -> None:
    """Foreign keys that point at what is dropped have indexes: else each row that goes costs a look at all others."""
    database = Database.open(embedded_settings, lambda _queue: None)
    with database.reading() as session:
        indexed = {
            (table.name, session.execute(text(f"PRAGMA index_info('{index}')")).first()[2])  # type: ignore[index]
            for table in Base.metadata.sorted_tables
            for _, index, *_ in session.execute(text(f"PRAGMA index_list('{table.name}')")).all()
        }
    database.close()
    dropped = {"analyses", "targets", "jobs"}
    needed = {
        (table.name, column.name)
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if any(key.column.table.name in dropped for key in column.foreign_keys)
    }
    assert needed <= indexed
