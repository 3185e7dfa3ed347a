"""The two launchers: bubblewrap in mode U or R, and the explicit unconfined one.

A launcher keeps no state between runs and may be used from several threads at once; each run lives in the thread that
calls `run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, Protocol

from worker.sandbox import arguments, reachability, usage
from worker.sandbox.arguments import Bind, Descriptors, Plan, Tools
from worker.sandbox.cgroups import CgroupError, Group, Hierarchy
from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.interpreters import runtime_of
from worker.sandbox.model import Cancelled, Command, Limits, Mode, Outcome, ResultLine, Status
from worker.sandbox.slots import Slot, occupy
from worker.sandbox.supervision import Ending, supervise

RESULT_VARIABLE: Final = "GRADPROOF_RESULT_FD"
# No passwd: getpass.getuser(), which inductor asks for its cache directory, is satisfied by these variables.
_ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/job",
    "TMPDIR": "/tmp",  # noqa: S108 - the tmpfs inside
    "LANG": "C.UTF-8",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
}
_HOSTS: Final = b"127.0.0.1 localhost sandbox\n::1 localhost\n"
_SIGNAL_BASE: Final = 128
_LAST_SIGNAL: Final = 64
# Not handed to code that runs unconfined: ours (they hold secrets) and what would bend its interpreter.
_WITHHELD: Final = ("GRADPROOF_", "PYTHON")


class Launcher(Protocol):
    """Runs one command at a time per thread; see the module `worker.sandbox.model` for the values."""

    @property
    def mode(self) -> Mode: ...

    def path_inside(self, command: Command, inside: str) -> str:
        """How the command itself sees the inside path `inside`: unchanged, or the host's path in mode OFF."""

    def run(self, command: Command, limits: Limits, on_result: ResultLine, cancelled: Cancelled) -> Outcome:
        """Run `command` to its end; `on_result` gets each result line, without the line end, while it runs."""


class BubblewrapLauncher:
    """Modes U and R. `slots` and `uid_base` are None when we aren't root: the job then runs under our own uid."""

    def __init__(
        self,
        mode: Mode,
        *,
        bwrap: Path,
        tools: Tools,
        seccomp: bytes,
        hierarchy: Hierarchy | None,
        slots: Path | None,
        uid_base: int,
    ) -> None:
        self.mode = mode
        self._bwrap = bwrap
        self._tools = tools
        self._seccomp = seccomp
        self._hierarchy = hierarchy
        self._slots = slots
        self._uid_base = uid_base

    def path_inside(self, command: Command, inside: str) -> str:
        del command
        return inside

    def run(self, command: Command, limits: Limits, on_result: ResultLine, cancelled: Cancelled) -> Outcome:
        with ExitStack() as stack:
            slot = stack.enter_context(occupy(self._slots, self._uid_base)) if self._slots is not None else None
            group = _enter_group(stack, self._hierarchy, limits)
            watch = None if group is not None else usage.MemoryWatch(limits.memory)
            result, result_end = _pipe(stack)
            status, status_end = _pipe(stack)
            inherited = Descriptors(
                seccomp=_in_memory(self._seccomp),
                request=_in_memory(command.request),
                hosts=_in_memory(_HOSTS),
                status=status_end,
                result=result_end,
                lock=os.dup(slot.lock) if slot is not None else None,
            )
            descriptors = [
                inherited.seccomp, inherited.request, inherited.hosts, inherited.status, inherited.result,
                *([] if inherited.lock is None else [inherited.lock]),
            ]  # fmt: skip
            try:
                vector = self._vector(command, limits, inherited, slot, group)
            except BaseException:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise

            def kill(process: subprocess.Popen[bytes]) -> None:
                process.kill()
                if group is not None:
                    group.kill()

            ending = supervise(
                vector, environment={}, directory="/", inherited=descriptors, result=result, status_report=status,
                limits=limits, on_result=on_result, cancelled=cancelled, kill=kill, watch=watch,
            )  # fmt: skip
            if ending.stopped is None and not _payload_ran(ending):
                raise SandboxUnavailableError(
                    f"the sandbox could not be set up: {ending.stderr_tail.strip() or 'no reason given'}",
                    returncode=ending.returncode,
                )
            return _outcome(self.mode, ending, group, watch)

    def _vector(
        self, command: Command, limits: Limits, inherited: Descriptors, slot: Slot | None, group: Group | None
    ) -> list[str]:
        shown = [(path, str(path)) for path in runtime_of(command.interpreter).visible]
        shown += [(Path(os.path.abspath(host)), inside) for host, inside in command.read_only.items()]  # noqa: PTH100
        bwrap = self._bwrap
        places: dict[Path, str] = {}
        staging: tuple[str, list[str]] | None = None
        if slot is not None:
            for host, _ in shown:
                reachability.require_readable(host)
            if self.mode is Mode.USER:
                bwrap, places, staging = self._stage([host for host, _ in shown])
        plan = Plan(
            mode=self.mode,
            bwrap=str(bwrap),
            uid=slot.uid if slot is not None else None,
            binds=[Bind(places.get(host, str(host)), inside) for host, inside in shown],
            limits=limits,
            descriptors=inherited,
            environment={**_ENVIRONMENT, **command.environment, RESULT_VARIABLE: str(inherited.result)},
            device_nodes=command.device_nodes,
            argv=command.argv,
        )
        vector = arguments.confined(plan, self._tools)
        if slot is not None and self.mode is Mode.USER:
            vector = [*arguments.give_up_root(self._tools, slot.uid), *vector]
            if staging is not None:
                vector = arguments.staged(self._tools, *staging, vector)
        arguments.refuse_dangerous(vector, root=os.geteuid() == 0)
        return _entered(self._tools, group, limits, vector)

    def _stage(self, hosts: Sequence[Path]) -> tuple[Path, dict[Path, str], tuple[str, list[str]] | None]:
        """Where the uid of the job finds what lies below directories that it may not search."""
        # The wheel's bwrap finds its library next door: its whole site-packages directory is shown.
        home = self._bwrap.parents[2] if len(self._bwrap.parents) > 2 else self._bwrap.parent
        hidden = [path for path in dict.fromkeys([*hosts, home]) if not reachability.parents_are_searchable(path)]
        if not hidden:
            return self._bwrap, {}, None
        place = reachability.staging_place([*hosts, self._bwrap])
        places = {path: f"{place}/{number}" for number, path in enumerate(hidden)}
        bwrap = Path(places[home]) / self._bwrap.relative_to(home) if home in places else self._bwrap
        return bwrap, places, (place, [str(path) for path in hidden])


class UnconfinedLauncher:
    """`--no-sandbox`: for code that one would run oneself. Clock, caps and limits stay; nothing is hidden."""

    mode: Final = Mode.OFF

    def __init__(self, *, tools: Tools, hierarchy: Hierarchy | None) -> None:
        self._tools = tools
        self._hierarchy = hierarchy

    def path_inside(self, command: Command, inside: str) -> str:
        for host, seen in command.read_only.items():
            if inside == seen or inside.startswith(seen.rstrip("/") + "/"):
                return str(host) + inside[len(seen.rstrip("/")) :]
        return inside

    def run(self, command: Command, limits: Limits, on_result: ResultLine, cancelled: Cancelled) -> Outcome:
        with ExitStack() as stack:
            job = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradproof-job-")))
            (job / "request.json").write_bytes(command.request)
            group = _enter_group(stack, self._hierarchy, limits)
            watch = None if group is not None else usage.MemoryWatch(limits.memory)
            result, result_end = _pipe(stack)
            mapped = replace(command, read_only={**command.read_only, job: "/job"})
            argv = [self.path_inside(mapped, word) for word in command.argv]
            asked = {name: self.path_inside(mapped, value) for name, value in command.environment.items()}
            environment = {**_inherited_environment(), **asked, RESULT_VARIABLE: str(result_end)}

            def kill(process: subprocess.Popen[bytes]) -> None:
                # The leader is not reaped yet, so that the group's number is still its own.
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                if group is not None:
                    group.kill()

            ending = supervise(
                _entered(self._tools, group, limits, argv), environment=environment, directory=str(job),
                inherited=[result_end], result=result, status_report=None, limits=limits, on_result=on_result,
                cancelled=cancelled, kill=kill, watch=watch,
            )  # fmt: skip
            return _outcome(self.mode, ending, group, watch)


def _entered(tools: Tools, group: Group | None, limits: Limits, vector: Sequence[str]) -> list[str]:
    if group is not None:
        return arguments.joined(tools, group.entrances(), vector)
    return arguments.limited(tools, limits, usage.processes_of_this_user(), vector)


def _enter_group(stack: ExitStack, hierarchy: Hierarchy | None, limits: Limits) -> Group | None:
    if hierarchy is None:
        return None
    try:
        group = hierarchy.create(limits)
    except CgroupError as error:
        raise SandboxUnavailableError(str(error)) from error
    stack.callback(group.close)
    return group


def _pipe(stack: ExitStack) -> tuple[IO[bytes], int]:
    """Our end, closed with `stack`, and the other end, which `supervise` closes."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    return stack.enter_context(os.fdopen(ours, "rb", buffering=0)), theirs


def _in_memory(content: bytes) -> int:
    """A descriptor, at its start, from which `content` can be read."""
    descriptor = os.memfd_create("gradproof", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _inherited_environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)}


def _payload_ran(ending: Ending) -> bool:
    """bwrap reports an exit code only for a command that it could start; a bwrap that was killed reports nothing."""
    if ending.returncode is None or ending.returncode < 0:
        return True
    for line in ending.status_report.splitlines():
        with contextlib.suppress(ValueError):
            if "exit-code" in json.loads(line):
                return True
    return False


def _outcome(mode: Mode, ending: Ending, group: Group | None, watch: usage.MemoryWatch | None) -> Outcome:
    oom_kills = group.oom_kills() if group is not None else 0
    peak = group.peak_memory() if group is not None else watch.peak if watch is not None else None
    status, exit_code, killed_by = _ended(mode, ending.returncode)
    if ending.stopped is not None:
        status, exit_code, killed_by = ending.stopped, None, None
    elif killed_by == signal.SIGKILL and oom_kills:
        status = Status.OUT_OF_MEMORY
    return Outcome(
        status=status,
        mode=mode,
        exit_code=exit_code,
        signal=killed_by,
        wall_s=ending.wall_s,
        peak_memory=peak,
        oom_kills=oom_kills,
        stdout_tail=ending.stdout_tail,
        stderr_tail=ending.stderr_tail,
        detail=ending.detail,
    )


def _ended(mode: Mode, returncode: int | None) -> tuple[Status, int | None, int | None]:
    """Status, exit code and signal. bwrap turns a payload's signal n into its own exit code 128 + n."""
    if returncode is None:
        return Status.SIGNALLED, None, None
    if returncode < 0:
        return Status.SIGNALLED, None, -returncode
    if mode is not Mode.OFF and _SIGNAL_BASE < returncode <= _SIGNAL_BASE + _LAST_SIGNAL:
        return Status.SIGNALLED, None, returncode - _SIGNAL_BASE
    return Status.EXITED, returncode, None
