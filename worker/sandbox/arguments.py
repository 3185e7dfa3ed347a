"""The argument vectors of a confined run: pure functions from a plan to lists of strings.

Everything that makes the confinement safe is decided here and nowhere else, so that tests can look at it without
starting a process. The vectors are, from the outside in: join the control groups, (mode U as root: show the needed
directories to a uid that could not reach them, give up root), bwrap, (mode R: give up root), the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.model import REQUEST, Limits, Mode

NOBODY: Final = "65534"

# The only shell text there is. It takes everything as parameters, and exists because joining a control group has to
# happen in the process that becomes bwrap, and a Python callback between fork and exec may deadlock in a program
# with threads. dash needs 1 ms for it, a second Python 10 ms. What the shell adds to the environment goes again.
JOIN: Final = """
set -e
ulimit -c 0
while [ "$1" != -- ]; do echo $$ > "$1"; shift; done
shift
unset PWD OLDPWD SHLVL
exec "$@"
"""

# Without a memory controller: at least no single process beyond the limit (private writable memory, in KiB; CUDA's
# address reservations don't count), and no more processes than allowed (dash says -p, bash says -u).
JOIN_WITH_LIMITS: Final = """
set -e
ulimit -c 0
ulimit -d "$1"
ulimit -p "$2" 2>/dev/null || ulimit -u "$2"
shift 2
[ "$1" = -- ]
shift
unset PWD OLDPWD SHLVL
exec "$@"
"""

# In a mount namespace of its own, so that nothing of it is seen outside or has to be cleaned up: a small tmpfs over a
# world-searchable place, and the directories bound into it as 0, 1, 2, …
STAGE: Final = """
set -e
mount="$1" place="$2" count=0
shift 2
"$mount" -t tmpfs -o mode=0755,size=256k gradproof "$place"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir "$place/$count"; else : > "$place/$count"; fi
  "$mount" --rbind "$1" "$place/$count"
  count=$((count + 1))
  shift
done
shift
unset PWD OLDPWD SHLVL
exec "$@"
"""

_ETC_FILES: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
_SYSTEM_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_TEMPORARY: Final = ("/dev/shm", "/tmp", "/job")  # noqa: S108 - names inside: each a fresh tmpfs of a bounded size
_ROOT_CAPABILITIES: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the programs are that a run passes through. All but the shell and bwrap are None where absent."""

    sh: str
    setpriv: str | None
    unshare: str | None
    mount: str | None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Open descriptors that bwrap inherits; only `result` and `archive` go on to the command."""

    seccomp: int
    request: int
    hosts: int
    status: int
    result: int
    lock: int | None
    archive: int | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path, where it can be reached from (differs when staged), and where it appears inside."""

    source: str
    inside: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides the vectors of one run. `uid` is None when bwrap runs under the uid we have."""

    mode: Mode
    bwrap: str
    uid: int | None
    binds: Sequence[Bind]
    limits: Limits
    descriptors: Descriptors
    environment: Mapping[str, str]
    device_nodes: Sequence[str]
    argv: Sequence[str]


def confined(plan: Plan, tools: Tools) -> list[str]:
    """bwrap and everything inside it."""
    vector = [plan.bwrap, *_namespaces(plan), *_file_system(plan), *_process(plan), "--"]
    if plan.mode is Mode.ROOT:
        # The environment of the command (LD_PRELOAD, say) must not be setpriv's, which still is root.
        assignments = [f"{name}={value}" for name, value in plan.environment.items()]
        vector += [*give_up_root(tools, plan.uid), "/usr/bin/env", "-i", *assignments]
    return [*vector, *plan.argv]


def give_up_root(tools: Tools, uid: int | None) -> list[str]:
    """setpriv to `uid`, with no way back."""
    if tools.setpriv is None or not uid:
        raise SandboxUnavailableError("setpriv and a uid other than root's are needed to give up root")
    return [
        tools.setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups",
        "--inh-caps", "-all", "--bounding-set", "-all", "--no-new-privs", "--",
    ]  # fmt: skip


def staged(tools: Tools, place: str, sources: Sequence[str], then: Sequence[str]) -> list[str]:
    """`then`, run where each of `sources` can also be reached as `place`/0, `place`/1, …"""
    if tools.unshare is None or tools.mount is None:
        raise SandboxUnavailableError("unshare and mount (util-linux) are needed to show private directories inside")
    return [
        tools.unshare, "--mount", "--propagation", "private", "--",
        tools.sh, "-c", STAGE, "gradproof-stage", tools.mount, place, *sources, "--", *then,
    ]  # fmt: skip


def joined(tools: Tools, entrances: Sequence[Path], then: Sequence[str]) -> list[str]:
    """`then`, run inside the control groups with these entrances."""
    return [tools.sh, "-c", JOIN, "gradproof-join", *map(str, entrances), "--", *then]


def limited(tools: Tools, limits: Limits, processes_now: int, then: Sequence[str]) -> list[str]:
    """`then`, with the limits that need no control group."""
    data = str(limits.memory // 1024)
    processes = str(processes_now + limits.processes)
    return [tools.sh, "-c", JOIN_WITH_LIMITS, "gradproof-limit", data, processes, "--", *then]


def refuse_dangerous(vector: Sequence[str], *, root: bool) -> None:
    """Raise if `vector`, started by root or not, would run a payload as global root without a user to become.

    Root in a user namespace of its own making is global root to the kernel: `/proc/sys/kernel/core_pattern` is
    writable and `/proc/1/environ` readable from inside (tried with bubblewrap 0.11.0).
    """
    if not root:
        return
    bwrap = next((index for index, word in enumerate(vector) if Path(word).name == "bwrap"), None)
    if bwrap is None:
        return
    dropped_before = _gives_up_root(vector[:bwrap])
    payload = vector[vector.index("--", bwrap) + 1 :] if "--" in vector[bwrap:] else []
    new_users = any(word in {"--unshare-user", "--unshare-user-try", "--unshare-all"} for word in vector[bwrap:])
    if dropped_before or (not new_users and _gives_up_root(payload)):
        return
    raise SandboxUnavailableError("refusing to start bubblewrap as root without becoming another user")


def _gives_up_root(words: Sequence[str]) -> bool:
    """Whether setpriv is called in `words` with a uid that isn't root's."""
    if "--reuid" not in words or not any(Path(word).name == "setpriv" for word in words):
        return False
    uid = words[words.index("--reuid") + 1 :][:1]
    return bool(uid) and uid[0].isdecimal() and int(uid[0]) != 0


def _namespaces(plan: Plan) -> list[str]:
    words = [
        "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
        "--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
    ]  # fmt: skip
    if plan.mode is Mode.USER:
        return ["--unshare-user", "--disable-userns", "--uid", NOBODY, "--gid", NOBODY, *words]
    return [*words, *(word for capability in _ROOT_CAPABILITIES for word in ("--cap-add", capability))]


def _file_system(plan: Plan) -> list[str]:
    limits, made = plan.limits, {"/"}
    words = ["--ro-bind", "/usr", "/usr"]
    for link in map(Path, _SYSTEM_LINKS):
        if link.is_symlink():
            words += ["--symlink", str(link.readlink()), str(link)]
        elif link.is_dir():
            words += ["--ro-bind", str(link), str(link)]
    words += _directory("/etc", made)
    for file in _ETC_FILES:
        words += ["--ro-bind-try", file, file]
    words += ["--perms", "0444", "--ro-bind-data", str(plan.descriptors.hosts), "/etc/hosts"]
    words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    sizes = (limits.shared_memory, limits.tmp, limits.job)
    for place, size in zip(_TEMPORARY, sizes, strict=True):
        words += ["--perms", "1777", "--size", str(size), "--tmpfs", place]
    made |= {"/dev", *_TEMPORARY}
    words += ["--perms", "0444", "--ro-bind-data", str(plan.descriptors.request), REQUEST]
    for bind in plan.binds:
        words += _parents(bind.inside, made)
        words += ["--ro-bind", bind.source, bind.inside]
    if plan.device_nodes:
        # CUDA: the nodes with their device permissions, and /sys, without which cuInit fails with 304.
        for node in plan.device_nodes:
            words += [*_parents(node, made), "--dev-bind", node, node]
        words += ["--ro-bind", "/sys", "/sys"]
    # Both are tmpfs without a size: whoever could write there could fill the memory of the machine.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/job"]


def _process(plan: Plan) -> list[str]:
    descriptors = plan.descriptors
    words = ["--seccomp", str(descriptors.seccomp), "--json-status-fd", str(descriptors.status)]
    if descriptors.lock is not None:
        words += ["--sync-fd", str(descriptors.lock)]
    if plan.mode is Mode.USER:
        for name, value in plan.environment.items():
            words += ["--setenv", name, value]
    return words


def _directory(path: str, made: set[str]) -> list[str]:
    made.add(path)
    return ["--perms", "0755", "--dir", path]


def _parents(path: str, made: set[str]) -> list[str]:
    """bwrap makes missing parents 0700, which the payload could not search."""
    words: list[str] = []
    for parent in reversed(Path(path).parents):
        if str(parent) not in made:
            words += _directory(str(parent), made)
    return words
