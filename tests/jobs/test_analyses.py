"""Analyses as a client sees them: submitting once, looking, paging, cancelling, running again, reporting."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from analyzer.findings import ImportNote
from services.analyses.errors import (
    AnalysisEndedError,
    AnalysisNotFoundError,
    IdempotencyConflictError,
    InvalidOptionsError,
    ReportUnavailableError,
)
from services.analyses.model import AnalysisOptions, GitSource, Stage
from services.checks.plan import BY_DEFAULT
from services.jobs.models import JobState
from services.reports.document import Harness
from services.snapshots.errors import GitUrlError
from services.snapshots.model import Author, Snapshot, Source
from tests.jobs.support import SNAPSHOT, Bench, check, reading

GIT = GitSource("https://example.org/team/models.git", "main")
COMMIT = "c" * 40


def test_an_analysis_goes_from_submission_to_report(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT, project="vision").analysis_id
    view = bench.analyses.get(analysis_id)
    assert (view.status, view.project, view.source.kind, view.ended) == ("queued", "vision", "archive", False)
    assert [(stage.name, stage.done, stage.total) for stage in view.progress] == [
        ("snapshot", 1, 1),
        ("static", 0, 1),
        ("targets", 0, 0),
        ("checks", 0, 0),
    ]
    (claim,) = bench.claim()
    bench.results.read(claim, reading(targets=2, findings=1))
    assert [(stage.done, stage.total) for stage in bench.analyses.get(analysis_id).progress] == [
        (1, 1),
        (1, 1),
        (0, 2),
        (0, 2 * len(BY_DEFAULT)),
    ]
    first, second = bench.claim()
    bench.results.ran(first, torch="2.13.0", devices=["cpu"], sandbox="bwrap-user", import_torch=1)
    harness = Harness(source="synthesised", grade="C", constructor="T()", inputs=["float64[2]"], provenance="guessed")
    bench.results.harness(first, harness)
    bench.results.check(first, check("gradcheck", "pass"))
    assert bench.analyses.get(analysis_id).progress[3] == Stage("checks", 1, 2 * len(BY_DEFAULT))
    bench.results.probed(first)
    assert bench.analyses.get(analysis_id).progress[2:] == (
        Stage("targets", 1, 2),
        Stage("checks", 1, 1 + len(BY_DEFAULT)),
    )
    bench.results.not_run(second, "constructor unsolved", "Target1(dim) has no default for dim")
    bench.results.probed(second)

    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "finished"
    assert (report.tool.torch, report.tool.devices, report.tool.sandbox) == ("2.13.0", ["cpu"], "bwrap-user")
    assert report.snapshot.digest == SNAPSHOT.digest
    assert [item.verdict for item in report.findings] == ["not_exercised"]
    assert [item.reason for item in report.suppressions] == ["measured, and small"]
    assert report.targets[0].harness == harness
    assert report.targets[1].not_run_reason == "constructor unsolved"
    assert report.summary.targets.not_run == {"constructor unsolved": 1}
    assert report.gate == bench.analyses.get(analysis_id).gate


def test_what_files_do_when_they_are_imported_is_kept(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    outcome = reading(targets=0)
    note = ImportNote("pkg/a.py", 3, "runs at import", "`train` is called")
    bench.results.read(claim, replace(outcome, analysis=replace(outcome.analysis, import_notes=(note,))))
    (told,) = bench.analyses.report(analysis_id).imports
    assert (told.path, told.line, told.kind) == ("pkg/a.py", 3, "runs at import")


def test_what_came_of_the_requirements_is_told_whatever_else_a_batch_reports(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    told = {"policy": "wheels", "packages": ["timm==1.0"], "kept": [], "refused": [], "reason": None}
    (claim,) = bench.claim()
    bench.results.environment(claim, told)
    bench.results.ran(claim, torch="2.13.0", devices=["cpu"], sandbox="bwrap-user", import_torch=1)
    bench.results.environment(claim, told)
    bench.results.probed(claim)
    environment = bench.analyses.report(analysis_id).tool.environment
    assert environment is not None
    assert environment.model_dump() == told


def test_the_peak_of_memory_is_that_of_the_sandbox_that_took_most(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=4)
    first, second, third, fourth = bench.claim()
    bench.results.probed(first)
    assert bench.analyses.report(analysis_id).analysis.peak_memory_bytes is None
    bench.results.probed(second, peak_memory=3_000)
    bench.results.broke(third, "out of memory", "too much", peak_memory=5_000)
    bench.results.probed(fourth, peak_memory=4_000)
    assert bench.analyses.report(analysis_id).analysis.peak_memory_bytes == 5_000


def test_findings_can_be_read_while_targets_still_run(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=2, findings=1)
    report = bench.analyses.report(analysis_id)
    assert report.analysis.status == "running"
    assert [item.fingerprint for item in report.findings] == ["fingerprint-0"]
    assert not report.gate.passed


def test_static_only_runs_nothing(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=3, options=AnalysisOptions(static_only=True))
    assert bench.status(analysis_id) == "finished"
    report = bench.analyses.report(analysis_id)
    assert (report.tool.torch, report.tool.sandbox) == (None, "none")
    assert report.summary.targets.not_run == {"not asked for": 3}


def test_only_the_checks_that_were_asked_for_are_planned(bench: Bench) -> None:
    bench.submit_and_read(targets=1, options=AnalysisOptions(checks=("gradcheck",)))
    (claim,) = bench.claim()
    assert claim.checks == ("gradcheck",)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"checks": ["gradchek"]}, "gradchek"),
        ({"rules": ["GP999"]}, "GP999"),
        ({"rules": [""]}, "''"),
        ({"static": True}, "static"),
        ({"static_only": "perhaps"}, "static_only"),
        ([], "options"),
    ],
)
def test_an_unusable_option_is_refused_by_name(options: object, named: str) -> None:
    with pytest.raises(InvalidOptionsError, match=named):
        AnalysisOptions.parse(options)


def test_rules_are_named_by_id_name_or_beginning() -> None:
    assert AnalysisOptions.parse({"rules": ["GP1", "unprotected-division"]}).rules == ("GP1", "unprotected-division")


def test_the_same_key_and_submission_give_the_same_analysis(bench: Bench, rung: list[str]) -> None:
    first = bench.analyses.submit(SNAPSHOT, idempotency_key="k", scope="token-1")
    again = bench.analyses.submit(SNAPSHOT, idempotency_key="k", scope="token-1")
    assert (first.created, again.created) == (True, False)
    assert again.analysis_id == first.analysis_id
    assert rung == ["cpu"]
    assert bench.analyses.submit(SNAPSHOT, idempotency_key="k", scope="token-2").created
    assert bench.analyses.submit(SNAPSHOT).created


def test_the_same_key_with_another_submission_is_a_conflict(bench: Bench) -> None:
    bench.analyses.submit(SNAPSHOT, idempotency_key="k")
    other = Snapshot(digest=f"sha256:{'b' * 64}", files=1, lines=1, source=Source("archive"))
    for source, options in ((other, None), (SNAPSHOT, AnalysisOptions(static_only=True)), (GIT, None)):
        with pytest.raises(IdempotencyConflictError):
            bench.analyses.submit(source, options, idempotency_key="k")


def test_requests_with_one_key_at_the_same_time_make_one_analysis(bench: Bench) -> None:
    barrier = threading.Barrier(6)
    ids: list[str] = []

    def submit() -> None:
        barrier.wait()
        ids.append(bench.analyses.submit(SNAPSHOT, idempotency_key="k").analysis_id)

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 6
    assert len(set(ids)) == 1
    assert len(bench.analyses.list().items) == 1


def test_a_git_source_is_fetched_by_a_job_and_then_read(bench: Bench, rung: list[str]) -> None:
    analysis_id = bench.analyses.submit(GIT).analysis_id
    assert rung == ["control"]
    (claim,) = bench.claim("control")
    work = bench.results.ingest_work(claim)
    assert (work.url, work.ref) == (GIT.url, "main")
    with pytest.raises(ReportUnavailableError, match="not fetched yet"):
        bench.analyses.report(analysis_id)
    author = Author("Ann Example", "ann@example.org")
    bench.results.ingested(claim, replace(SNAPSHOT, source=Source("git", GIT.url, COMMIT, author)))
    assert rung == ["control", "cpu"]
    (static,) = bench.claim()
    bench.results.read(static, reading(targets=0))
    report = bench.analyses.report(analysis_id)
    assert report.snapshot.source.model_dump() == {"kind": "git", "url": GIT.url, "commit": COMMIT}


def test_a_git_source_that_can_not_be_had_fails_with_the_reason(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(GIT).analysis_id
    (claim,) = bench.claim("control")
    bench.results.ended(claim, JobState.FAILED, "git-ref: there is no ref 'main'")
    view = bench.analyses.get(analysis_id)
    assert (view.status, view.reason) == ("failed", "git-ref: there is no ref 'main'")
    with pytest.raises(ReportUnavailableError, match="no ref"):
        bench.analyses.report(analysis_id)


@pytest.mark.parametrize("url", ["file:///etc", "ext::sh -c x", "--upload-pack=x", "http://example.org/x", ""])
def test_a_url_that_may_not_be_fetched_is_refused_before_anything_is_stored(bench: Bench, url: str) -> None:
    with pytest.raises(GitUrlError):
        bench.analyses.submit(GitSource(url))
    assert bench.analyses.list().items == ()


def test_analyses_are_paged_from_the_newest(bench: Bench) -> None:
    ids = [bench.analyses.submit(SNAPSHOT, project="a" if number % 2 else "b").analysis_id for number in range(5)]
    first = bench.analyses.list(limit=2)
    assert [item.id for item in first.items] == ids[:2:-1]
    second = bench.analyses.list(limit=2, cursor=first.next_cursor)
    third = bench.analyses.list(limit=2, cursor=second.next_cursor)
    assert [item.id for page in (first, second, third) for item in page.items] == ids[::-1]
    assert third.next_cursor is None
    assert [item.id for item in bench.analyses.list(project="a").items] == [ids[3], ids[1]]
    assert bench.analyses.list(project="nobody").items == ()
    bench.analyses.cancel(ids[0])
    assert [item.id for item in bench.analyses.list(statuses=["cancelled"]).items] == [ids[0]]


def test_what_the_base_has_too_is_not_new(bench: Bench) -> None:
    base = bench.submit_and_read(targets=0, findings=1)
    analysis_id = bench.analyses.submit(SNAPSHOT, base=base).analysis_id
    (claim,) = bench.claim()
    bench.results.read(claim, reading(targets=0, findings=2))
    assert [item.is_new for item in bench.analyses.report(analysis_id).findings] == [False, True]


def test_an_unknown_base_is_refused(bench: Bench) -> None:
    with pytest.raises(AnalysisNotFoundError):
        bench.analyses.submit(SNAPSHOT, base="nobody")
    assert bench.analyses.list().items == ()


def test_running_again_keeps_source_options_project_and_base(bench: Bench) -> None:
    base = bench.submit_and_read(targets=0)
    options = AnalysisOptions(checks=("gradcheck",))
    old = bench.analyses.submit(SNAPSHOT, options, project="vision", base=base).analysis_id
    new = bench.analyses.rerun(old)
    assert new.created
    view = bench.analyses.get(new.analysis_id)
    assert (view.options, view.project, view.base_id, view.status) == (
        options.model_copy(update={"reuse": False}),
        "vision",
        base,
        "queued",
    )
    assert view.snapshot_digest == SNAPSHOT.digest


def test_running_again_what_was_never_fetched_fetches_it(bench: Bench, rung: list[str]) -> None:
    old = bench.analyses.submit(GIT).analysis_id
    bench.analyses.cancel(old)
    rung.clear()
    bench.analyses.rerun(old)
    assert rung == ["control"]


def test_an_ended_analysis_can_not_be_cancelled(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=0)
    with pytest.raises(AnalysisEndedError):
        bench.analyses.cancel(analysis_id)
    assert bench.status(analysis_id) == "finished"


def test_a_cancelled_analysis_keeps_what_was_found_and_passes_no_gate(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=2, findings=1)
    view = bench.analyses.cancel(analysis_id)
    assert view.gate is not None
    assert not view.gate.passed
    assert len(bench.analyses.report(analysis_id).findings) == 1


@pytest.mark.parametrize("call", ["get", "cancel", "rerun", "report", "parts"])
def test_an_unknown_analysis_is_not_found(bench: Bench, call: str) -> None:
    with pytest.raises(AnalysisNotFoundError):
        getattr(bench.analyses, call)("nobody")
