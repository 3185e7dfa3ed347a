"""A control group for each run: memory, processes and processor time of everything in it, counted and bounded.

Version 1 (one tree for each controller), version 2 (one tree), and the hybrid of both are told apart by
`/proc/self/mountinfo`. The launcher's first process writes itself into the group before it becomes bwrap, so that
nothing of a run is ever outside.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from worker.sandbox.model import Limits

# bwrap's monitor and its first process inside are counted along with the payload; in mode R no more than these two.
OWN_PROCESSES: Final = 3
_PERIOD_US: Final = 100_000
_PREFIX: Final = "gradproof-"
_CONTROLLERS: Final = ("memory", "pids", "cpu")
_EMPTY_WITHIN_S: Final = 10.0
_serial = itertools.count()


class CgroupError(Exception):
    """A group can't be made or be removed; the message says which file and why."""


class Group(Protocol):
    """One run's group."""

    def entrances(self) -> tuple[Path, ...]:
        """The files into which a process writes its pid to be in the group."""

    def peak_memory(self) -> int | None:
        """Most bytes that were in use at a time, page cache included; None if nobody counts."""

    def oom_kills(self) -> int:
        """How many processes the memory limit killed."""

    def kill(self) -> None:
        """SIGKILL to everything inside."""

    def close(self) -> None:
        """Kill what is left, wait until the group is empty, remove it."""


class Hierarchy(Protocol):
    """Where groups can be made on this machine."""

    @property
    def version(self) -> int: ...

    @property
    def controllers(self) -> tuple[str, ...]:
        """Those that can be used here, out of memory, pids and cpu."""

    def create(self, limits: Limits) -> Group:
        """A new group with `limits` in force. Raises CgroupError."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """Where this process stands: its own directory in each version 1 tree, and in the version 2 tree."""

    v1: Mapping[str, Path]
    v2: Path | None


def own_mounts(mountinfo: str, membership: str) -> Mounts:
    """Read out of the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.

    A container may see a part of a tree only (`root` of the mount); its own path is then relative to that part.
    """
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(",") if names else [""]:
            paths[name] = path
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mount_point = (_unescape(field) for field in before.split(" ")[3:5])
        if kind == "cgroup2" and "" in paths and v2 is None:
            v2 = _below(mount_point, root, paths[""])
        elif kind == "cgroup":
            for name in set(options.split(",")) & set(_CONTROLLERS) & set(paths):
                v1.setdefault(name, _below(mount_point, root, paths[name]))
    return Mounts(v1, v2)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _below(mount_point: str, root: str, path: str) -> Path:
    relative = os.path.relpath(path, root)
    return Path(mount_point) if relative.startswith("..") else Path(os.path.normpath(Path(mount_point) / relative))


def find_hierarchy() -> tuple[Hierarchy | None, str]:
    """The hierarchy that can be used here; and, without one, the reason."""
    try:
        mounts = own_mounts(
            Path("/proc/self/mountinfo").read_text(encoding="utf-8"),
            Path("/proc/self/cgroup").read_text(encoding="utf-8"),
        )
    except OSError as error:
        return None, f"control groups can't be read: {error}"
    if "memory" in mounts.v1:
        return _usable(VersionOne({name: path for name, path in mounts.v1.items() if os.access(path, os.W_OK)}))
    if mounts.v2 is None:
        return None, "no control group tree is mounted"
    reasons: list[str] = []
    for base in version_two_bases(mounts.v2):
        hierarchy, reason = _usable(VersionTwo(base, delegate=base == mounts.v2 and not _is_root_group(base)))
        if hierarchy is not None:
            return hierarchy, ""
        reasons.append(reason)
    return None, "; ".join(reasons)


def version_two_bases(own: Path) -> tuple[Path, ...]:
    """Where a group may be made: beside our own group first (nothing has to move), else below it.

    The kernel allows no processes in a group that hands controllers on; the parent of our own group hands them on
    already. It is writable for root; a service with `Delegate=yes` has only its own group.
    """
    if not (own.parent / "cgroup.controllers").exists():
        return (own,)
    return (own.parent, own)


def _is_root_group(directory: Path) -> bool:
    """The root of the whole tree may hold processes and hand controllers on; only it has no type."""
    return not (directory / "cgroup.type").exists()


def _usable(hierarchy: Hierarchy) -> tuple[Hierarchy | None, str]:
    """Try it: making and removing one group says more than permission bits."""
    if "memory" not in hierarchy.controllers:
        return None, "the memory controller of the control groups is not writable for us"
    try:
        hierarchy.create(Limits()).close()
    except CgroupError as error:
        return None, str(error)
    return hierarchy, ""


class VersionOne:
    """A directory in each controller's own tree."""

    version: Final = 1

    def __init__(self, bases: Mapping[str, Path]) -> None:
        self._bases = dict(bases)

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(name for name in _CONTROLLERS if name in self._bases)

    def create(self, limits: Limits) -> VersionOneGroup:
        name = _group_name()
        directories: dict[str, Path] = {}
        try:
            for controller in self.controllers:
                _remove_leftovers(self._bases[controller])
                directories[controller] = self._bases[controller] / name
                directories[controller].mkdir()
            group = VersionOneGroup(directories)
            group.restrict(limits)
        except OSError as error:
            _remove(directories.values())
            raise CgroupError(f"no control group can be made: {error}") from error
        return group


class VersionOneGroup:
    """See Group."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = dict(directories)

    def restrict(self, limits: Limits) -> None:
        memory = self._directories["memory"]
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory), encoding="ascii")
        with contextlib.suppress(OSError):  # absent where swap is not accounted for
            (memory / "memory.memsw.limit_in_bytes").write_text(str(limits.memory), encoding="ascii")
        if "pids" in self._directories:
            (self._directories["pids"] / "pids.max").write_text(_pids(limits), encoding="ascii")
        if "cpu" in self._directories:
            (self._directories["cpu"] / "cpu.cfs_period_us").write_text(str(_PERIOD_US), encoding="ascii")
            (self._directories["cpu"] / "cpu.cfs_quota_us").write_text(_quota(limits), encoding="ascii")

    def entrances(self) -> tuple[Path, ...]:
        return tuple(directory / "cgroup.procs" for directory in self._directories.values())

    def peak_memory(self) -> int | None:
        return _number(self._directories["memory"] / "memory.max_usage_in_bytes")

    def oom_kills(self) -> int:
        return _counter(self._directories["memory"] / "memory.oom_control", "oom_kill")

    def kill(self) -> None:
        _kill_members(self._directories["memory"])

    def close(self) -> None:
        for directory in self._directories.values():
            _await_empty(directory)
        _remove(self._directories.values())


class VersionTwo:
    """A directory in the one tree, below `base`.

    With `delegate`, the processes that live in `base` itself are first moved to a leaf of it, because a group that
    hands controllers on may hold none; that is what `Delegate=yes` gives a service its group for.
    """

    version: Final = 2

    def __init__(self, base: Path, *, delegate: bool = False) -> None:
        self._base = base
        self._delegate = delegate

    @property
    def controllers(self) -> tuple[str, ...]:
        if not os.access(self._base, os.W_OK):
            return ()
        offered = _words(self._base / "cgroup.controllers")
        return tuple(name for name in _CONTROLLERS if name in offered)

    def create(self, limits: Limits) -> VersionTwoGroup:
        directory = self._base / _group_name()
        try:
            _remove_leftovers(self._base)
            self._hand_on_controllers()
            directory.mkdir()
        except OSError as error:
            raise CgroupError(f"no control group can be made below {self._base}: {error}") from error
        group = VersionTwoGroup(directory)
        try:
            group.restrict(limits, self.controllers)
        except OSError as error:
            _remove([directory])
            raise CgroupError(f"limits can't be set in {directory}: {error}") from error
        return group

    def _hand_on_controllers(self) -> None:
        switch = self._base / "cgroup.subtree_control"
        missing = [name for name in self.controllers if name not in _words(switch)]
        if not missing:
            return
        if self._delegate:
            self._move_to_leaf()
        switch.write_text(" ".join(f"+{name}" for name in missing), encoding="ascii")

    def _move_to_leaf(self) -> None:
        members = _members(self._base)
        if not members:
            return
        leaf = self._base / f"{_PREFIX}worker"
        leaf.mkdir(exist_ok=True)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")


class VersionTwoGroup:
    """See Group."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def restrict(self, limits: Limits, controllers: tuple[str, ...]) -> None:
        if "memory" in controllers:
            (self._directory / "memory.max").write_text(str(limits.memory), encoding="ascii")
            with contextlib.suppress(OSError):  # absent where swap is not accounted for
                (self._directory / "memory.swap.max").write_text("0", encoding="ascii")
        if "pids" in controllers:
            (self._directory / "pids.max").write_text(_pids(limits), encoding="ascii")
        if "cpu" in controllers:
            (self._directory / "cpu.max").write_text(f"{_quota(limits)} {_PERIOD_US}", encoding="ascii")

    def entrances(self) -> tuple[Path, ...]:
        return (self._directory / "cgroup.procs",)

    def peak_memory(self) -> int | None:
        return _number(self._directory / "memory.peak")  # since Linux 5.19

    def oom_kills(self) -> int:
        return _counter(self._directory / "memory.events", "oom_kill")

    def kill(self) -> None:
        switch = self._directory / "cgroup.kill"  # since Linux 5.14
        if switch.exists():
            switch.write_text("1", encoding="ascii")
        else:
            _kill_members(self._directory)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.kill()
        _await_empty(self._directory)
        _remove([self._directory])


def _group_name() -> str:
    return f"{_PREFIX}{_pid_namespace()}-{os.getpid()}-{next(_serial)}-{os.urandom(4).hex()}"


def _pids(limits: Limits) -> str:
    return str(limits.processes + OWN_PROCESSES)


def _quota(limits: Limits) -> str:
    return str(max(1000, int(limits.cpus * _PERIOD_US)))  # the kernel takes no quota below 1 ms


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []


def _counter(file: Path, name: str) -> int:
    """The value of the line `name value`, 0 where there is none (`oom_kill` came to version 1 with Linux 4.13)."""
    words = _words(file)
    return next((int(value) for key, value in zip(words[::2], words[1::2], strict=False) if key == name), 0)


def _members(directory: Path) -> list[int]:
    return [int(word) for word in _words(directory / "cgroup.procs") if word.isdecimal() and word != "0"]


def _kill_members(directory: Path) -> None:
    """Each by a descriptor that was a member both before and after it was opened: a pid may be given away meanwhile."""
    with contextlib.ExitStack() as stack:
        opened = dict(_process_descriptors(_members(directory), stack))
        for pid in set(_members(directory)) & set(opened):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(opened[pid], signal.SIGKILL)


def _process_descriptors(pids: list[int], stack: contextlib.ExitStack) -> Iterator[tuple[int, int]]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            yield pid, descriptor


def _await_empty(directory: Path) -> None:
    """A process may linger for some milliseconds after bwrap is gone: wait, killing, until nobody is left."""
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while _members(directory) and time.monotonic() < deadline:
        _kill_members(directory)
        time.sleep(0.002)


def _remove(directories: Iterable[Path]) -> None:
    """Remove empty groups. The kernel may say EBUSY for some milliseconds after the last member has left."""
    for directory in directories:
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while directory.exists():
            try:
                directory.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.002)


def _remove_leftovers(base: Path) -> None:
    """End and remove the groups of workers that were killed.

    bwrap dies with its worker, unless that dies in the few milliseconds before bwrap has asked to: then the payload
    would run on with nobody to watch its clock.
    """
    ours = f"{_PREFIX}{_pid_namespace()}-"
    for directory in base.glob(f"{ours}*"):
        owner = directory.name.removeprefix(ours).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            _kill_members(directory)
            with contextlib.suppress(OSError):  # still emptying: the next sweep takes it
                directory.rmdir()


@functools.cache
def _pid_namespace() -> int:
    """Which processes our pids mean: another container may share the tree of groups, and have pids of its own."""
    return Path("/proc/self/ns/pid").stat().st_ino
