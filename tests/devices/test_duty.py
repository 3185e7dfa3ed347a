"""A worker serves with a GPU that it alone has and that is empty; otherwise it says why not, and looks again."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import update

from services.database import Database
from services.database.base import utc_now
from services.jobs.model import DeviceState
from services.jobs.models import LeaseRow
from services.settings import Settings
from tests.devices.conftest import Clock, Serve
from tests.drivers import FIRST, SECOND, Driver, gpu
from worker.devices.duty import DeviceDuty

SERVING, WAITING, OUT = DeviceState.SERVING, DeviceState.WAITING, DeviceState.OUT_OF_SERVICE


def states(*duties: DeviceDuty) -> list[tuple[str | None, DeviceState]]:
    return [(duty.told.id, duty.told.state) for duty in duties]


def test_each_worker_of_a_machine_gets_a_gpu_of_its_own_and_the_next_one_waits(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    one, two, three = serve("one"), serve("two"), serve("three")
    assert states(one, two, three) == [(FIRST, SERVING), (SECOND, SERVING), (None, WAITING)]
    assert three.lend() is None
    assert "held by process" in three.told.detail
    two.close()
    three.look()
    assert states(three) == [(SECOND, SERVING)]


def test_containers_that_share_no_files_are_kept_apart_by_the_database(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    one, two = serve("one"), serve("two", container="other")
    assert states(one, two) == [(FIRST, SERVING), (None, WAITING)]
    assert "another machine or container" in two.told.detail
    one.close()
    two.look()
    assert states(two) == [(FIRST, SERVING)]


def test_the_asked_device_is_waited_for_though_another_is_free(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST), gpu(SECOND, 1))
    one, two = serve("one", asked="cuda:1"), serve("two", asked=SECOND)
    assert states(one, two) == [(SECOND, SERVING), (None, WAITING)]
    wrong = serve("three", asked="cuda:7")
    assert states(wrong) == [(None, WAITING)]
    assert "there is no device 'cuda:7'" in wrong.told.detail


def test_one_batch_at_a_time_has_the_device(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    got: list[bool] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        got.append(duty.lend() is not None)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.count(True) == 1
    duty.hand_back()
    assert duty.lend() is not None
    duty.hand_back()


@pytest.mark.parametrize("reason", ["no driver", "no device", "slices"])
def test_a_worker_without_a_usable_device_takes_no_job_and_says_why(serve: Serve, driver: Driver, reason: str) -> None:
    words = {"no driver": "GPU is lost", "no device": "no CUDA device", "slices": "MIG"}
    if reason == "no driver":
        driver.fails()
    elif reason == "slices":
        driver.lists(gpu(FIRST, mig="Enabled"))
    duty = serve("one")
    assert (duty.lend(), duty.told.state) == (None, WAITING)
    assert words[reason] in duty.told.detail


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (gpu(FIRST, processes=[(42, "C", "python")]), "process 42 (python), which Gradproof did not start"),
        (gpu(FIRST, used=9000), "9000 MiB of it are in use by processes that can't be seen"),
    ],
)
def test_a_device_in_use_by_others_is_not_served_until_they_have_gone(
    serve: Serve, driver: Driver, busy: str, words: str
) -> None:
    driver.lists(busy)
    duty = serve("one")
    assert states(duty) == [(FIRST, OUT)]
    assert words in duty.told.detail
    assert duty.lend() is None
    driver.lists(gpu(FIRST))
    duty.look()
    assert states(duty) == [(FIRST, SERVING)]


def test_a_device_that_nobody_uses_is_preferred(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST, used=9000), gpu(SECOND, 1))
    assert states(serve("one")) == [(SECOND, SERVING)]
    assert states(serve("two")) == [(FIRST, OUT)]


def test_a_display_does_not_make_a_device_unfit(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST, used=700, processes=[(7, "G", "Xorg")]))
    duty = serve("one")
    assert duty.lend() is not None
    duty.hand_back()
    assert states(duty) == [(FIRST, SERVING)]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (gpu(FIRST, used=700, processes=[(42, "C", "python")]), "process 42 (python) is still on the device"),
        (gpu(FIRST, used=700), "699 MiB of its memory were not given back"),
        ("", "does not list"),
    ],
)
def test_what_a_batch_leaves_behind_takes_the_device_out_of_service_until_it_is_gone(
    serve: Serve, driver: Driver, after: str, words: str
) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    assert duty.lend() is not None
    driver.lists(after)
    duty.hand_back()
    assert states(duty) == [(FIRST, OUT)]
    assert words in duty.told.detail
    assert duty.lend() is None
    duty.look()
    assert states(duty) == [(FIRST, OUT)], "nothing has changed"
    driver.lists(gpu(FIRST, used=20))
    duty.look()
    assert duty.lend() is not None
    duty.hand_back()


def test_a_driver_that_answers_no_more_after_a_batch_ends_service(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    duty.lend()
    driver.fails()
    duty.hand_back()
    assert states(duty) == [(FIRST, OUT)]
    assert "GPU is lost" in duty.told.detail


def test_a_batch_that_never_used_the_device_is_not_asked_about(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    duty.lend()
    driver.fails()
    duty.hand_back(used=False)
    assert states(duty) == [(FIRST, SERVING)]


def test_a_condemned_device_stays_out_of_service(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    duty.lend()
    duty.condemn("torch sees no CUDA device in the sandbox")
    duty.hand_back()
    duty.look()
    assert states(duty) == [(FIRST, OUT)]
    assert duty.told.detail == "torch sees no CUDA device in the sandbox"


def test_a_lease_that_ran_out_and_was_taken_by_another_is_lost_and_not_shared(
    serve: Serve, driver: Driver, database: Database
) -> None:
    driver.lists(gpu(FIRST))
    one, two = serve("one"), serve("two", container="other")
    assert one.lend() is not None
    with database.unit_of_work() as uow:
        uow.session.execute(update(LeaseRow).values(until=utc_now().replace(year=2000)))
    two.look()
    assert states(two) == [(FIRST, SERVING)]
    one.renew()
    assert states(one) == [(None, WAITING)]
    assert "another worker has taken" in one.told.detail
    one.hand_back()
    assert one.lend() is None


def test_a_device_whose_lease_could_not_be_renewed_for_too_long_is_not_lent(
    serve: Serve, driver: Driver, clock: Clock, service_settings: Settings
) -> None:
    driver.lists(gpu(FIRST))
    duty = serve("one")
    clock.now += service_settings.lease.total_seconds() + 1.0
    assert duty.lend() is None
    duty.renew()
    assert duty.lend() is not None
    duty.hand_back()


def test_a_worker_that_ends_keeps_the_device_until_its_batch_has_ended(serve: Serve, driver: Driver) -> None:
    driver.lists(gpu(FIRST))
    one = serve("one")
    assert one.lend() is not None
    closing = threading.Thread(target=one.close)
    closing.start()
    two = serve("two")
    assert states(two) == [(None, WAITING)]
    one.hand_back()
    closing.join()
    two.look()
    assert states(two) == [(FIRST, SERVING)]
    assert one.lend() is None
