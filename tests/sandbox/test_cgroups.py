"""Control groups: where they are found, what is written into them, and that nothing of them is left."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from worker.sandbox.cgroups import (
    CgroupError,
    VersionOne,
    VersionTwo,
    VersionTwoGroup,
    find_hierarchy,
    own_mounts,
    version_two_bases,
)
from worker.sandbox.model import Limits

LIMITS = Limits(memory=100 * 2**20, processes=50, cpus=1.5)

HYBRID_MOUNTS = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory
35 30 0:31 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
36 30 0:32 / /sys/fs/cgroup/net\\040cls rw,nosuid - cgroup cgroup rw,net_cls
"""
HYBRID_MEMBERSHIP = """\
5:pids:/user.slice/a
4:memory:/user.slice/a/b
3:cpu,cpuacct:/
1:name=systemd:/user.slice/a/b
0::/user.slice/session
"""


def test_each_controller_of_version_one_is_found_in_its_own_tree() -> None:
    mounts = own_mounts(HYBRID_MOUNTS, HYBRID_MEMBERSHIP)
    assert mounts.v1 == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory/user.slice/a/b"),
        "pids": Path("/sys/fs/cgroup/pids/user.slice/a"),
    }
    assert mounts.v2 == Path("/sys/fs/cgroup/unified/user.slice/session")


def test_the_one_tree_of_version_two_is_found() -> None:
    mounts = own_mounts("31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/system.slice/gradproof.service\n")
    assert (mounts.v1, mounts.v2) == ({}, Path("/sys/fs/cgroup/system.slice/gradproof.service"))


def test_a_container_that_sees_a_part_of_a_tree_finds_itself_in_it() -> None:
    mountinfo = "31 30 0:27 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n"
    inside = own_mounts(mountinfo, "4:memory:/docker/abc/job\n")
    assert inside.v1 == {"memory": Path("/sys/fs/cgroup/mem ory/job")}
    outside = own_mounts(mountinfo, "4:memory:/elsewhere\n")
    assert outside.v1 == {"memory": Path("/sys/fs/cgroup/mem ory")}


def test_no_tree_at_all_is_no_place() -> None:
    mounts = own_mounts("21 1 0:19 / /proc rw - proc proc rw\n", "0::/\n")
    assert (mounts.v1, mounts.v2) == ({}, None)


# -- version 2, by its file protocol ---------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that looks like a group to which the three controllers were handed."""
    base = tmp_path / "service"
    base.mkdir()
    (base / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    (base / "cgroup.subtree_control").write_text("")
    (base / "cgroup.procs").write_text("")
    (base / "cgroup.type").write_text("domain\n")
    return base


def only_group(base: Path) -> Path:
    (group,) = base.glob("gradproof-*-*")
    return group


def test_version_two_hands_controllers_on_and_writes_each_limit(tree: Path) -> None:
    hierarchy = VersionTwo(tree)
    group = hierarchy.create(LIMITS)
    directory = only_group(tree)
    assert (hierarchy.version, hierarchy.controllers) == (2, ("memory", "pids", "cpu"))
    assert (tree / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (directory / "memory.max").read_text() == str(100 * 2**20)
    assert (directory / "memory.swap.max").read_text() == "0"
    assert (directory / "pids.max").read_text() == "53"  # and three of bwrap's own
    assert (directory / "cpu.max").read_text() == "150000 100000"
    assert group.entrances() == (directory / "cgroup.procs",)


def test_version_two_writes_nothing_for_a_controller_that_it_was_not_given(tree: Path) -> None:
    (tree / "cgroup.controllers").write_text("memory\n")
    VersionTwo(tree).create(LIMITS)
    assert sorted(file.name for file in only_group(tree).iterdir()) == ["memory.max", "memory.swap.max"]


def test_version_two_moves_its_own_processes_to_a_leaf_where_it_was_delegated_to(tree: Path) -> None:
    (tree / "cgroup.procs").write_text("4242\n")
    VersionTwo(tree, delegate=True).create(LIMITS)
    assert (tree / "gradproof-worker" / "cgroup.procs").read_text() == "4242"


def test_version_two_leaves_what_is_handed_on_already(tree: Path) -> None:
    (tree / "cgroup.subtree_control").write_text("cpu memory pids")
    (tree / "cgroup.procs").write_text("4242\n")
    VersionTwo(tree, delegate=True).create(LIMITS)
    assert (tree / "cgroup.subtree_control").read_text() == "cpu memory pids"
    assert not (tree / "gradproof-worker").exists()


def test_version_two_reads_peak_and_kills_and_ends_by_one_switch(tmp_path: Path) -> None:
    (tmp_path / "memory.peak").write_text("12345\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "cgroup.kill").write_text("")
    group = VersionTwoGroup(tmp_path)
    assert (group.peak_memory(), group.oom_kills()) == (12345, 2)
    group.kill()
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_version_two_without_a_peak_says_that_nobody_counted(tmp_path: Path) -> None:
    assert VersionTwoGroup(tmp_path).peak_memory() is None
    assert VersionTwoGroup(tmp_path).oom_kills() == 0


def test_a_group_that_can_not_be_limited_is_taken_away_again(tree: Path) -> None:
    (tree / "cgroup.subtree_control").unlink()
    (tree / "cgroup.subtree_control").mkdir()  # writing to it fails, as the kernel's refusal would
    with pytest.raises(CgroupError, match="service"):
        VersionTwo(tree).create(LIMITS)
    assert list(tree.glob("gradproof-*")) == []


def test_groups_of_dead_workers_are_swept_and_those_of_live_ones_and_of_others_stay(tree: Path) -> None:
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    left, live, foreign = (
        tree / f"gradproof-{name}-0-aa"
        for name in (f"{namespace}-{dead.pid}", f"{namespace}-{os.getpid()}", f"1-{dead.pid}")
    )
    for directory in (left, live, foreign):
        directory.mkdir()
    VersionTwo(tree).create(LIMITS)
    assert (left.exists(), live.exists(), foreign.exists()) == (False, True, True)


def test_what_a_dead_worker_left_running_is_ended_by_the_next_one() -> None:
    hierarchy, _ = find_hierarchy()
    if hierarchy is None:
        return
    code = """
import subprocess
from worker.sandbox.cgroups import find_hierarchy
from worker.sandbox.model import Limits
group = find_hierarchy()[0].create(Limits())
joins = "".join(f"echo $$ > {entrance}; " for entrance in group.entrances())
orphan = subprocess.Popen(
    ["/bin/sh", "-c", joins + "echo in; exec sleep 600"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
)
orphan.stdout.readline()
print(orphan.pid, flush=True)
"""
    worker = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, check=True
    )
    orphan = os.pidfd_open(int(worker.stdout))
    try:
        hierarchy.create(LIMITS).close()
        ended, _, _ = select.select([orphan], [], [], 20)
        assert ended == [orphan]
    finally:
        os.close(orphan)


def test_a_group_beside_our_own_is_preferred_to_moving_anything(tree: Path) -> None:
    own = tree / "worker"
    own.mkdir()
    assert version_two_bases(own) == (tree, own)
    assert version_two_bases(tree) == (tree,)


# -- this machine ----------------------------------------------------------------------------------------------------


def test_a_real_group_holds_kills_and_vanishes() -> None:
    """On whatever this machine has; where nothing is ours to use, the reason says so."""
    hierarchy, reason = find_hierarchy()
    if hierarchy is None:
        assert reason
        return
    _exercise(hierarchy)


def test_a_real_tree_of_version_two_kills_by_its_switch() -> None:
    """In a hybrid machine the tree of version 2 has no memory controller, yet processes can live and die in it."""
    own = own_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()).v2
    if own is not None and (own / "cgroup.procs").exists() and VersionTwo(own).controllers == ():
        _exercise(VersionTwo(own))


def _exercise(hierarchy: VersionOne | VersionTwo) -> None:
    group = hierarchy.create(LIMITS)
    entrances = group.entrances()
    joins = "".join(f"echo $$ > {entrance}; " for entrance in entrances)
    with subprocess.Popen(["/bin/sh", "-c", f"{joins}echo in; exec sleep 600"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        assert all(str(process.pid) in entrance.read_text().split() for entrance in entrances)
        group.kill()
        assert process.wait(20) == -9
    group.close()
    assert not any(entrance.parent.exists() for entrance in entrances)
