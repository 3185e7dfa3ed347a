"""Uids of jobs: each has one holder at a time, and none is lost."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from worker.sandbox import SandboxUnavailableError, slots
from worker.sandbox.slots import occupy, slot_directory


def test_holders_at_the_same_time_get_different_uids_and_a_freed_one_is_used_again(tmp_path: Path) -> None:
    with occupy(tmp_path, 1000) as first:
        with occupy(tmp_path, 1000) as second, occupy(tmp_path, 1000) as third:
            assert [first.uid, second.uid, third.uid] == [1000, 1001, 1002]
        with occupy(tmp_path, 1000) as again:
            assert again.uid == 1001


def test_a_uid_stays_taken_as_long_as_anybody_holds_its_lock(tmp_path: Path) -> None:
    with occupy(tmp_path, 1000) as first:
        kept = os.dup(first.lock)  # as bwrap does when its worker is killed
    try:
        with occupy(tmp_path, 1000) as second:
            assert second.uid == 1001
    finally:
        os.close(kept)
    with occupy(tmp_path, 1000) as third:
        assert third.uid == 1000


def test_when_all_uids_are_taken_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS", 2)
    with ExitStack() as stack:
        stack.enter_context(occupy(tmp_path, 1000))
        stack.enter_context(occupy(tmp_path, 1000))
        with pytest.raises(SandboxUnavailableError, match="all 2 sandbox uids from 1000 on are in use"):
            stack.enter_context(occupy(tmp_path, 1000))


def test_locks_lie_below_the_data_directory_where_the_machine_has_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_MACHINE_WIDE", Path("/proc/none"))
    assert slot_directory(tmp_path) == tmp_path / "sandbox-slots"
    with pytest.raises(SandboxUnavailableError, match="no place for the locks"):
        slot_directory(Path("/proc/none"))
