"""A GPU has one holder on a machine: real processes, a made-up UUID."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.drivers import FIRST, SECOND
from worker.devices.lease import holder, lock_directory, try_lock

# Says whether it got the device, then holds what it got until its standard input ends.
HOLD = """
import sys
from pathlib import Path
from worker.devices.lease import try_lock
lock = try_lock(sys.argv[1], Path(sys.argv[2]))
print("held" if lock else "refused", flush=True)
sys.stdin.read()
if lock and sys.argv[3] == "release":
    lock.release()
"""


@contextmanager
def process(uuid: str, directory: Path, end: str = "die") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that tries to hold the device, and what it said."""
    started = subprocess.Popen(
        [sys.executable, "-c", HOLD, uuid, str(directory), end],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.kill()
        started.communicate()


def test_of_several_processes_one_gets_the_device(tmp_path: Path) -> None:
    with process(FIRST, tmp_path) as (one, said), process(FIRST, tmp_path) as (_, second_said):
        with process(SECOND, tmp_path) as (_, other_said):
            assert [said, second_said, other_said] == ["held", "refused", "held"]
        assert holder(FIRST, tmp_path) == one.pid
        assert try_lock(FIRST, tmp_path) is None


def test_a_killed_holder_frees_the_device_at_once(tmp_path: Path) -> None:
    with process(FIRST, tmp_path) as (one, said):
        assert said == "held"
        one.kill()
        one.wait()
    assert holder(FIRST, tmp_path) is None
    lock = try_lock(FIRST, tmp_path)
    assert lock is not None
    assert holder(FIRST, tmp_path) == os.getpid()
    lock.release()
    lock.release()
    assert holder(FIRST, tmp_path) is None


def test_what_a_holder_starts_does_not_hold_the_device_after_it(tmp_path: Path) -> None:
    # Popen returns when the program runs: until then, a forked child has all that its parent has open.
    code = HOLD.replace("print(", "import subprocess; subprocess.Popen(['sleep', '60'])\nprint(")
    starter = subprocess.Popen(
        [sys.executable, "-c", code, FIRST, str(tmp_path), "die"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline().strip() == "held"
        starter.kill()
        starter.wait()
        lock = try_lock(FIRST, tmp_path)
        assert lock is not None
        lock.release()
    finally:
        os.killpg(starter.pid, 9)
        assert starter.stdin is not None
        starter.stdin.close()
        starter.stdout.close()


def test_the_lock_of_a_device_can_be_opened_by_every_user_of_the_machine(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lock = try_lock(FIRST, tmp_path)
    finally:
        os.umask(before)
    assert lock is not None
    lock.release()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o666 == 0o666


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / f"gradproof-{FIRST}.lock").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"symbolic links|loop"):
        try_lock(FIRST, tmp_path)
    assert not elsewhere.exists()


def test_all_workers_of_a_machine_look_for_locks_in_one_place(tmp_path: Path) -> None:
    assert lock_directory(None) == lock_directory(None)
    assert lock_directory(tmp_path / "asked") == tmp_path / "asked"
    assert (tmp_path / "asked").is_dir()
