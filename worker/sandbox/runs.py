"""What runs of every mode have in common: joining a group, a pipe, and reading an outcome out of an ending."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Final

from worker.sandbox import arguments, usage
from worker.sandbox.arguments import Tools
from worker.sandbox.cgroups import CgroupError, Group, Hierarchy
from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.model import Limits, Meter, Mode, Outcome, Status
from worker.sandbox.supervision import Ending

_SIGNAL_BASE: Final = 128
_LAST_SIGNAL: Final = 64


def entered(tools: Tools, group: Group | None, limits: Limits, vector: Sequence[str]) -> list[str]:
    """`vector`, run inside `group`, or with the limits that hold without one."""
    if group is not None:
        return arguments.joined(tools, group.entrances(), vector)
    return arguments.limited(tools, limits, usage.processes_of_this_user(), vector)


def enter_group(stack: ExitStack, hierarchy: Hierarchy | None, limits: Limits) -> Group | None:
    """A group that lives as long as `stack`; None where there are no groups."""
    if hierarchy is None:
        return None
    try:
        group = hierarchy.create(limits)
    except CgroupError as error:
        raise SandboxUnavailableError(str(error)) from error
    stack.callback(group.close)
    return group


def open_pipe(stack: ExitStack) -> tuple[IO[bytes], int]:
    """Our end, closed with `stack`, and the other end, which `supervise` closes."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    return stack.enter_context(os.fdopen(ours, "rb", buffering=0)), theirs


@contextmanager
def metered(meter: Meter | None, group: Group | None, watch: usage.MemoryWatch | None) -> Iterator[None]:
    """Has `meter` look at the run of the block, and afterwards keep what it saw last."""
    if meter is not None:
        meter.peak_memory = lambda: peak_memory(group, watch)
    try:
        yield
    finally:
        if meter is not None:
            last = peak_memory(group, watch)
            meter.peak_memory = lambda: last


def peak_memory(group: Group | None, watch: usage.MemoryWatch | None) -> int | None:
    """The most bytes in use so far, by whoever counts them."""
    return group.peak_memory() if group is not None else watch.peak if watch is not None else None


def outcome_of(mode: Mode, ending: Ending, group: Group | None, watch: usage.MemoryWatch | None) -> Outcome:
    """What befell the command. Call it while `group` still exists: the counters go with it."""
    oom_kills = group.oom_kills() if group is not None else 0
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
        peak_memory=peak_memory(group, watch),
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
