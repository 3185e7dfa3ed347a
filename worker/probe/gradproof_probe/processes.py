"""Forked children that are watched: deadline, bounded output, and the manner of their end told apart.

Submitted code runs only in such children. A child writes JSON lines to a pipe of its own; it never inherits the
parent's other file descriptors (so it can't write to the worker's result pipe). Nothing here knows targets or checks.
Only the Linux kernel's own facilities are used: no signal handlers, no threads (both change what submitted code sees).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
LINE_LIMIT: Final = 1 * 2**20  # the worker refuses longer lines (worker.sandbox.model.Limits.result_line)
TAIL: Final = 4096  # bytes of standard output and of standard error that are kept as evidence
RESULT_LIMIT: Final = 8 * 2**20  # bytes of lines from one child: a child that writes more is not ours any more
READ: Final = 65536

How = Literal["exited", "signalled", "timed_out", "flooded"]


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended. `signal` is set for a death by a signal that wasn't ours."""

    how: How
    exit_code: int | None
    signal: int | None
    stdout_tail: str
    stderr_tail: str
    duration_s: float

    @property
    def clean(self) -> bool:
        return self.how == "exited" and self.exit_code == 0

    def describe(self) -> str:
        if self.how == "timed_out":
            return f"was stopped after {self.duration_s:.1f} s: the time limit"
        if self.how == "flooded":
            return "was stopped: it wrote more result data than any check does"
        if self.signal is not None:
            name = signal_name(self.signal)
            if self.signal == signal.SIGKILL:
                return "was killed (SIGKILL, not by Gradproof): out of memory if the sandbox counted a kill"
            return f"crashed with {name}"
        return f"exited by itself with status {self.exit_code}"


class LineWriter:
    """Writes JSON lines to a file descriptor, whole or not at all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, allow_nan=False, ensure_ascii=True).encode() + b"\n"
        if len(data) > LINE_LIMIT:
            raise ValueError(f"a line of {len(data)} bytes is over the limit of {LINE_LIMIT}")
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


OnLine = Callable[[bytes], None]
Deadline = Callable[[], float]
Work = Callable[[LineWriter], None]


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def prctl(option: int, value: int) -> None:
    """Best effort: a kernel or a filter that refuses leaves the sandbox's own walls, which don't depend on it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def harden_parent() -> None:
    """No core, no ptrace or /proc/PID/fd access for children of the same uid, orphans come to us."""
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def watch(work: Work, *, deadline: Deadline, on_line: OnLine) -> End:
    """Fork, run `work` in the child, hand its lines to `on_line`, and return how it ended.

    `deadline()` is asked again and again (monotonic seconds), so that it may move with what was heard.
    Every other descendant is killed when the child has ended.
    """
    started = time.monotonic()
    result_read, result_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _child(work, result_write, out_write, err_write)
    for descriptor in (result_write, out_write, err_write):
        os.close(descriptor)
    for descriptor in (result_read, out_read, err_read):
        os.set_blocking(descriptor, False)
    pump = _Pump(result_read, out_read, err_read, on_line)
    how: How = "exited"
    status: int | None = None
    try:
        while status is None:
            if time.monotonic() > deadline():
                how = "timed_out"
                break
            if pump.flooded:
                how = "flooded"
                break
            # A closed result pipe means that the child is about to end: look often, it takes a millisecond.
            pump.turn(0.002 if pump.closed else 0.05)
            status = _reap(child)
        lasted = time.monotonic() - started  # killing thousands of forks takes long, and is not the child's time
        if status is None:
            _kill_tree(child)
            _, status = os.waitpid(child, 0)
        pump.drain()
    finally:
        kill_descendants()
        for descriptor in (result_read, out_read, err_read):
            os.close(descriptor)
    dead_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if how == "exited" and dead_by is not None:
        how = "signalled"
    return End(
        how=how,
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=dead_by if how == "signalled" else None,
        stdout_tail=pump.tail(out_read),
        stderr_tail=pump.tail(err_read),
        duration_s=lasted,
    )


class _Pump:
    """Reads the three pipes; keeps tails of the outputs, cuts the result into lines."""

    def __init__(self, result: int, out: int, err: int, on_line: OnLine) -> None:
        self._result = result
        self._on_line = on_line
        self._pending = bytearray()
        self._tails = {out: bytearray(), err: bytearray()}
        self._open = {result, out, err}
        self._received = 0
        self.flooded = False

    @property
    def closed(self) -> bool:
        return self._result not in self._open

    def turn(self, timeout_s: float) -> bool:
        """Read once from every pipe that has something; False if none had."""
        if not self._open:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select(list(self._open), [], [], timeout_s)
        for descriptor in ready:
            self._read(descriptor)
        return bool(ready)

    def drain(self) -> None:
        """What the child left in the pipes: at most their capacity, unless a descendant still writes."""
        for _ in range(64):
            if not self._open or not self.turn(0):
                return

    def tail(self, descriptor: int) -> str:
        return bytes(self._tails[descriptor]).decode("utf-8", "replace")

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ)
        except BlockingIOError:
            return
        if not data:
            self._open.discard(descriptor)
        elif descriptor == self._result:
            self._lines(data)
        else:
            tail = self._tails[descriptor]
            tail += data
            del tail[:-TAIL]

    def _lines(self, data: bytes) -> None:
        self._received += len(data)
        self._pending += data
        while (end := self._pending.find(b"\n")) >= 0:
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            if len(line) <= LINE_LIMIT:
                self._on_line(line)
        if len(self._pending) > LINE_LIMIT or self._received > RESULT_LIMIT:
            self.flooded = True
            self._pending.clear()


def _child(work: Work, result: int, out: int, err: int) -> None:
    """Never returns. The process can be killed at any time; what it wrote until then counts."""
    code = 70  # EX_SOFTWARE: an error of the probe itself, written to standard error
    # Collections in the child leave alone what came with the fork: looking at it would copy every page that holds it
    # (half of the CPU time of 2,000 small backward passes, a tenth of compiling a model).
    gc.freeze()
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        own = os.dup(result) if result < 3 else result
        close_other_descriptors(own)
        os.set_inheritable(own, False)  # noqa: FBT003
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - descriptors, not files; lives as long as the process
        sys.stdout = open(1, "w", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
        prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root and oom_score_adj can't be raised
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        work(LineWriter(own))
        code = 0
    except BaseException:
        import traceback

        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def close_other_descriptors(keep: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - iterdir would keep one more descriptor open
        descriptor = int(name)
        if descriptor > 2 and descriptor != keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _reap(child: int) -> int | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return status if pid == child else None


def _parents() -> dict[int, int]:
    """Parent of every visible process, from /proc/PID/stat (world-readable, also of undumpable processes)."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed, ten times a second
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", name, "stat").read_bytes()
                found[int(name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return found


def descendants(of: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [of]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _kill_tree(root: int) -> None:
    """Stop first, then kill: a process that forks all the time can't slip through between two looks."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in [root, *descendants(root)]:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def kill_descendants(patience_s: float = 5.0) -> int:
    """Kill every process below this one, reap them, and return how many were found. Never signals anybody else."""
    own = os.getpid()
    until = time.monotonic() + patience_s
    seen: set[int] = set()
    while below := descendants(own):
        seen.update(below)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > until:
            break
        time.sleep(0.002)
    return len(seen)
