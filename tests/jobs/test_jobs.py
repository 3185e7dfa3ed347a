"""Jobs as rows: claiming, fencing, giving back, losing, cancelling. On both databases."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from services.analyses.models import AnalysisRow, AnalysisStatus
from services.analyses.reconciler import Reconciler
from services.checks.models import CheckResultRow
from services.checks.plan import BY_DEFAULT
from services.database import Database
from services.database.base import FromNow
from services.jobs import repository
from services.jobs.errors import LeaseLostError
from services.jobs.model import Claim
from services.jobs.models import JobKind, JobRow, JobState
from services.jobs.service import JobService
from tests.conftest import MakeSettings
from tests.jobs.support import SNAPSHOT, Bench, check, reading
from tests.recovery.support import eventually


def job(bench: Bench, job_id: str) -> JobRow:
    with bench.database.reading() as session:
        return session.get_one(JobRow, job_id)


def expire(bench: Bench, *claims: Claim) -> None:
    """What time does to the leases of a dead worker."""
    with bench.database.unit_of_work() as uow:
        uow.session.execute(
            update(JobRow)
            .where(JobRow.id.in_([claim.job_id for claim in claims]))
            .values(lease_until=FromNow(timedelta(seconds=-1)))
        )


def test_a_submission_queues_reading_and_rings_once(bench: Bench, rung: list[str]) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    assert rung == ["cpu"]
    assert bench.status(analysis_id) == "queued"
    (claim,) = bench.claim()
    assert (claim.analysis_id, claim.kind, claim.attempt) == (analysis_id, "static", 1)
    assert bench.status(analysis_id) == "running"
    assert bench.claim() == ()


def test_reading_queues_one_job_a_target_and_rings_once_a_batch(bench: Bench, rung: list[str]) -> None:
    bench = bench.with_settings(target_batch=3)
    bench.submit_and_read(targets=7)
    assert rung == ["cpu", "cpu", "cpu", "cpu"]
    sizes = []
    while claims := bench.claim():
        sizes.append(len(claims))
        assert [claim.checks for claim in claims] == [claims[0].checks] * len(claims)
    assert sizes == [3, 3, 1]


def test_targets_of_a_file_are_run_from_its_end_where_what_is_built_of_the_others_stands(bench: Bench) -> None:
    bench.submit_and_read(targets=5, findings=0)
    claims = bench.claim()
    plans = bench.results.probe_work(claims).plans
    assert [plans[claim.job_id].declaration.qualname for claim in claims] == [f"Target{n}" for n in (4, 3, 2, 1, 0)]


def test_hypotheses_reach_the_target_that_encloses_the_finding(bench: Bench) -> None:
    bench.submit_and_read(targets=2, findings=1)
    claims = bench.claim()
    plans = bench.results.probe_work(claims).plans
    first, second = (plans[claim.job_id].hypotheses for claim in claims)
    assert [(item["rule"], item["line"], item["operand"]) for item in first] == [("GP101", 3, "x")]
    assert second == ()


def test_two_workers_never_claim_the_same_job(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=2)
    bench.submit_and_read(targets=24)
    claimed: Counter[str] = Counter()
    lock = threading.Lock()

    def work(owner: str) -> None:
        while claims := bench.claim(owner=owner):
            with lock:
                claimed.update(claim.job_id for claim in claims)

    threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == 24
    assert set(claimed.values()) == {1}


def test_a_worker_that_was_not_quick_enough_takes_what_another_analysis_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = bench.analyses.submit(SNAPSHOT).analysis_id
    waiting = bench.analyses.submit(SNAPSHOT).analysis_id
    assert [claim.analysis_id for claim in bench.claim()] == [taken]
    # What this worker saw before it waited for the lock, which the other one held: `taken` still had its job.
    seen = [taken]
    look = repository.next_analysis
    monkeypatch.setattr(
        repository, "next_analysis", lambda session, queue: seen.pop() if seen else look(session, queue)
    )
    assert [claim.analysis_id for claim in bench.claim(owner="worker-2")] == [waiting]


def test_an_analysis_with_many_targets_does_not_keep_a_later_one_waiting(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=2)
    large = bench.submit_and_read(targets=10)
    assert [claim.analysis_id for claim in bench.claim()] == [large, large]
    small = bench.analyses.submit(SNAPSHOT).analysis_id
    assert [claim.analysis_id for claim in bench.claim()] == [small]


def test_results_are_stored_as_they_come(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    bench.results.check(claim, check("gradcheck", "fail", line=3))
    assert job(bench, claim.job_id).state == JobState.RUNNING
    parts = bench.analyses.parts(analysis_id)
    assert [(item.check, item.verdict) for item in parts.targets[0].checks] == [("gradcheck", "fail")]
    assert parts.gate.passed is False


def test_a_second_result_of_the_same_check_is_not_stored(bench: Bench) -> None:
    bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    bench.results.check(claim, check("gradcheck", "pass"))
    bench.results.check(claim, check("gradcheck", "fail"))
    with bench.database.reading() as session:
        assert [row.verdict for row in session.scalars(select(CheckResultRow))] == ["pass"]


def test_who_lost_the_lease_can_write_nothing(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    (late,) = bench.claim(owner="late")
    bench.results.check(late, check("gradcheck", "fail"))
    expire(bench, late)
    assert bench.reconciler.tick().requeued == 1
    (fresh,) = bench.claim(owner="fresh")
    assert (fresh.job_id, fresh.attempt) == (late.job_id, 2)
    for write in (
        lambda: bench.results.check(late, check("compile_equivalence", "fail")),
        lambda: bench.results.probed(late),
        lambda: bench.results.broke(late, "crashed", "SIGSEGV"),
        lambda: bench.results.lost(late, "gone"),
        lambda: bench.results.ran(late, torch="0", devices=["old"], sandbox="off", import_torch=1),
        lambda: bench.results.environment(late, {"policy": "wheels", "packages": ["old==1"]}),
        lambda: bench.results.budget_spent([late]),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert bench.jobs.give_back([late], "too late") == 0
    bench.results.check(fresh, check("gradcheck", "pass"))
    bench.results.probed(fresh)
    assert bench.status(analysis_id) == "finished"
    (target,) = bench.analyses.parts(analysis_id).targets
    assert [(item.check, item.verdict) for item in target.checks] == [("gradcheck", "pass")]
    tool = bench.analyses.report(analysis_id).tool
    assert (tool.torch, tool.devices, tool.sandbox, tool.torch_imports, tool.environment) == (None, [], "none", 0, None)


def test_what_a_batch_ran_on_is_told_by_its_present_owner_alone(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=2)
    late, _ = bench.claim(owner="first")
    expire(bench, late)
    bench.reconciler.tick()
    (fresh,) = bench.claim(owner="second")
    assert fresh.job_id == late.job_id
    bench.results.ran(fresh, torch="2.13.0", devices=["cpu"], sandbox="bwrap-user", import_torch=1)
    with pytest.raises(LeaseLostError):
        bench.results.ran(late, torch="0.0", devices=["late"], sandbox="off", import_torch=1)
    tool = bench.analyses.report(analysis_id).tool
    assert (tool.torch, tool.devices, tool.sandbox, tool.torch_imports) == ("2.13.0", ["cpu"], "bwrap-user", 1)


def test_the_same_worker_can_not_write_for_an_attempt_that_it_lost(bench: Bench) -> None:
    bench.submit_and_read(targets=1)
    (first,) = bench.claim(owner="worker")
    expire(bench, first)
    bench.reconciler.tick()
    (second,) = bench.claim(owner="worker")
    assert second.job_id == first.job_id
    with pytest.raises(LeaseLostError):
        bench.results.probed(first)
    bench.results.probed(second)


def test_a_heartbeat_renews_what_is_owned_and_names_what_is_not(bench: Bench) -> None:
    bench.submit_and_read(targets=3)
    claims = bench.claim()
    before = job(bench, claims[0].job_id).lease_until
    expire(bench, claims[2])
    bench.reconciler.tick()
    kept = bench.jobs.renew(claims)
    assert kept == {claims[0].job_id, claims[1].job_id}
    after = job(bench, claims[0].job_id).lease_until
    assert before is not None
    assert after is not None
    assert after > before


def test_a_lease_that_ran_out_is_renewed_if_nobody_took_the_job_meanwhile(bench: Bench) -> None:
    """A database that was away longer than the lease must not cost a worker its work."""
    bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    expire(bench, claim)
    assert bench.jobs.renew([claim]) == {claim.job_id}
    assert bench.reconciler.tick().requeued == 0


def test_work_given_back_is_free_at_once_and_costs_no_attempt(bench: Bench, rung: list[str]) -> None:
    bench = bench.with_settings(max_attempts=1)
    bench.submit_and_read(targets=2)
    claims = bench.claim(owner="leaving")
    rung.clear()
    assert bench.jobs.give_back(claims, "shut down") == 2
    assert rung == ["cpu", "cpu"]
    again = bench.claim(owner="next")
    assert [claim.job_id for claim in again] == [claim.job_id for claim in claims]
    assert [job(bench, claim.job_id).losses for claim in again] == [0, 0]


def test_a_job_lost_too_often_is_given_up_and_its_checks_say_why(bench: Bench) -> None:
    bench = bench.with_settings(max_attempts=2)
    analysis_id = bench.submit_and_read(targets=2)
    doomed, fine = bench.claim()
    bench.results.probed(fine)
    bench.results.lost(doomed, "no sandbox here")
    (again,) = bench.claim()
    assert again.attempt == 2
    bench.results.lost(again, "no sandbox here")
    assert job(bench, doomed.job_id).state == JobState.INFRA_FAILED
    view = bench.analyses.get(analysis_id)
    assert view.status == "partial"
    assert view.reason == "1 of 2 runs could not be made: no sandbox here"
    first, _ = bench.analyses.parts(analysis_id).targets
    assert {(item.verdict, item.summary) for item in first.checks} == {("error", "infrastructure: no sandbox here")}
    assert [item.check for item in first.checks] == list(BY_DEFAULT)


def test_workers_that_die_again_and_again_end_in_infra_failed_too(bench: Bench) -> None:
    bench = bench.with_settings(max_attempts=2)
    analysis_id = bench.submit_and_read(targets=1)
    for _ in range(2):
        (claim,) = bench.claim()
        expire(bench, claim)
        bench.reconciler.tick()
    assert bench.claim() == ()
    assert bench.status(analysis_id) == "partial"


def test_a_crash_of_submitted_code_is_a_result_and_not_repeated(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    bench.results.broke(claim, "crashed", "the probe was ended by signal 11")
    assert bench.claim() == ()
    row = job(bench, claim.job_id)
    assert (row.state, row.losses) == (JobState.CRASHED, 0)
    assert bench.status(analysis_id) == "finished"
    (target,) = bench.analyses.parts(analysis_id).targets
    assert (target.not_run_reason, target.not_run_detail) == ("crashed", "the probe was ended by signal 11")


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("crashed", JobState.CRASHED),
        ("timed out", JobState.TIMED_OUT),
        ("out of memory", JobState.CRASHED),
        ("output limit", JobState.FAILED),
    ],
)
def test_each_way_of_breaking_a_sandbox_is_told_apart(bench: Bench, cause: str, state: JobState) -> None:
    bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    bench.results.broke(claim, cause, "as seen")
    row = job(bench, claim.job_id)
    assert (row.state, row.reason) == (state, f"{cause}: as seen")


def test_the_last_job_settles_findings_and_gate_in_the_same_breath(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=2, findings=1)
    failing, passing = bench.claim()
    bench.results.check(failing, check("gradcheck", "fail", line=3))
    bench.results.probed(failing)
    assert bench.status(analysis_id) == "running"
    bench.results.check(passing, check("gradcheck", "pass"))
    bench.results.probed(passing)
    view = bench.analyses.get(analysis_id)
    assert view.status == "finished"
    assert view.gate is not None
    assert not view.gate.passed
    (settled,) = bench.analyses.parts(analysis_id).findings
    assert settled.settlement.verdict == "confirmed"
    assert settled.finding.hypothesis == {"operand": "x"}
    assert [stage.done for stage in view.progress] == [stage.total for stage in view.progress] == [1, 1, 2, 2]


def test_jobs_that_end_at_the_same_time_settle_their_analysis_exactly_once(bench: Bench) -> None:
    for _ in range(5):
        analysis_id = bench.submit_and_read(targets=4)
        claims = bench.claim()
        barrier = threading.Barrier(len(claims))

        def end(claim: Claim, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            bench.results.probed(claim)

        threads = [threading.Thread(target=end, args=(claim,)) for claim in claims]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bench.status(analysis_id) == "finished"


def test_the_reconciler_settles_what_a_dead_worker_left_unsettled(bench: Bench) -> None:
    analysis_id = bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    with bench.database.unit_of_work() as uow:
        repository.finish(uow.session, claim, JobState.SUCCEEDED)
    assert bench.status(analysis_id) == "running"
    assert bench.reconciler.tick().settled == 1
    assert bench.status(analysis_id) == "finished"
    assert bench.reconciler.tick().settled == 0


def test_those_that_wait_for_their_base_keep_no_others_from_being_settled(bench: Bench) -> None:
    base = bench.analyses.submit(SNAPSHOT).analysis_id
    with bench.database.reading() as session:
        assert repository.unsettled(session) == []
    waiting = bench.analyses.submit(SNAPSHOT, base=base).analysis_id
    (first, *_) = bench.claim()
    with bench.database.unit_of_work() as uow:
        for row in repository.jobs_of(uow.session, waiting):
            row.state, row.lease_until = JobState.SUCCEEDED, None
        uow.session.flush()
        assert repository.unsettled(uow.session) == []
        repository.finish(uow.session, first, JobState.SUCCEEDED)
        assert list(repository.unsettled(uow.session)) == [base]
        uow.session.get_one(AnalysisRow, base).status = AnalysisStatus.FINISHED
        uow.session.flush()
        assert list(repository.unsettled(uow.session)) == [waiting]


def test_an_analysis_without_targets_ends_with_reading(bench: Bench) -> None:
    assert bench.status(bench.submit_and_read(targets=0)) == "finished"


def test_a_source_that_breaks_its_reader_fails_the_analysis_with_the_reason(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    bench.results.ended(claim, JobState.CRASHED, "the reader of the source was ended by SIGSEGV")
    view = bench.analyses.get(analysis_id)
    assert (view.status, view.reason) == ("failed", "the reader of the source was ended by SIGSEGV")


def test_cancelling_takes_jobs_away_from_their_workers(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=1)
    analysis_id = bench.submit_and_read(targets=2)
    (claim,) = bench.claim()
    view = bench.analyses.cancel(analysis_id)
    assert (view.status, view.ended) == ("cancelled", True)
    assert bench.jobs.renew([claim]) == frozenset()
    assert bench.claim() == ()
    with pytest.raises(LeaseLostError):
        bench.results.check(claim, check())
    assert bench.analyses.cancel(analysis_id).status == "cancelled"


@pytest.mark.parametrize("work", ["cancel", "renew", "tick"])
def test_whoever_changes_many_jobs_locks_them_in_one_order(
    postgres_url: str, make_settings: MakeSettings, work: str
) -> None:
    """Two that lock in different orders wait for each other until PostgreSQL ends one of them."""
    settings = make_settings(
        database_url=postgres_url, reconcile_every=timedelta(milliseconds=1), lease=timedelta(hours=1), target_batch=2
    )
    database = Database.open(settings, lambda _queue: None)
    bench = Bench(database, settings)
    analysis_id = bench.submit_and_read(targets=4)
    claims = bench.claim()
    if work == "tick":
        bench.jobs.give_back(claims, "for the reconciler to ring")
    with database.reading() as session:
        jobs = [row.id for row in repository.jobs_of(session, analysis_id) if row.kind == JobKind.PROBE]
    jobs = [claim.job_id for claim in claims] if work == "renew" else jobs
    for job_id in reversed(jobs):  # a changed row goes to the end of its table: now they lie in the other order
        with database.unit_of_work() as uow:
            uow.session.execute(update(JobRow).where(JobRow.id == job_id).values(reason="moved"))
    works: dict[str, Callable[[], object]] = {
        "cancel": lambda: bench.analyses.cancel(analysis_id),
        "renew": lambda: bench.jobs.renew(claims),
        "tick": bench.reconciler.tick,
    }
    with ThreadPoolExecutor() as pool:
        with database.unit_of_work() as uow:
            hold = select(JobRow.id).with_for_update()
            uow.session.execute(hold.where(JobRow.id == jobs[0]))
            other = pool.submit(works[work])
            # Each look is a transaction of its own: within one, PostgreSQL goes on showing what the first look saw.
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
                waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                eventually(lambda: watcher.scalar(waiting) == 1, "the other one waits for the first job")
            uow.session.execute(hold.where(JobRow.id == jobs[-1]))
        other.result()
    database.close()


def test_two_processes_can_not_both_be_the_reconciler(bench: Bench) -> None:
    first, second = (Reconciler(bench.database, bench.settings, holder) for holder in ("first", "second"))
    assert first.tick().held
    assert not second.tick().held
    assert first.tick().held
    first.resign()
    assert second.tick().held


def test_a_doorbell_that_nobody_heard_is_rung_again(bench: Bench, rung: list[str]) -> None:
    bench.analyses.submit(SNAPSHOT)
    rung.clear()
    assert bench.reconciler.tick().rung == ()
    with bench.database.unit_of_work() as uow:
        uow.session.execute(update(JobRow).values(rung_at=FromNow(timedelta(hours=-1))))
    assert bench.reconciler.tick().rung == ("cpu",)
    assert rung == ["cpu"]
    assert bench.reconciler.tick().rung == ()


def test_a_gpu_class_gets_its_own_queue_and_the_checks_that_need_it(bench: Bench, rung: list[str]) -> None:
    bench = bench.with_settings(gpu_classes=("h200",))
    bench.submit_and_read(targets=1)
    assert rung == ["cpu", "cpu", "gpu.h200"]
    (on_cpu,) = bench.claim("cpu")
    (on_gpu,) = bench.claim("gpu.h200")
    assert (on_cpu.device_class, on_cpu.checks) == ("cpu", BY_DEFAULT[:-1])
    assert (on_gpu.device_class, on_gpu.checks) == ("h200", ("device_compare",))


def test_what_waits_in_the_queues_can_be_seen(bench: Bench) -> None:
    bench = bench.with_settings(target_batch=1)
    bench.submit_and_read(targets=3)
    bench.claim()
    with bench.database.reading() as session:
        (depth,) = repository.depths(session)
    assert (depth.queue, depth.waiting, depth.running) == ("cpu", 2, 1)
    assert depth.oldest_s is not None


def test_a_job_that_was_not_begun_goes_back_without_blame(bench: Bench) -> None:
    bench = bench.with_settings(max_attempts=1)
    bench.submit_and_read(targets=1)
    (claim,) = bench.claim()
    bench.results.returned(claim, "its sandbox ended before it began")
    (again,) = bench.claim()
    assert again.job_id == claim.job_id


def test_reading_again_after_a_lost_attempt_replaces_what_was_read(bench: Bench) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    expire(bench, claim)
    bench.reconciler.tick()
    (again,) = JobService(bench.database, bench.settings).claim("cpu", "next", lambda _session, _ids: None)
    bench.results.read(again, reading(targets=2))
    with pytest.raises(LeaseLostError):
        bench.results.read(claim, reading(targets=5))
    assert len(bench.analyses.parts(analysis_id).targets) == 2
