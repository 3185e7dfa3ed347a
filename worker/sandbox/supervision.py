"""Starting one run and watching it until it ends: clock, cancellation, output, results.

Knows nothing of how the run is confined. It works in the calling thread alone, because `bwrap --die-with-parent`
dies with the thread that started it; several threads may each supervise a run.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from worker.sandbox.errors import SandboxUnavailableError
from worker.sandbox.model import Archive, Cancelled, Limits, ResultLine, Status

TICK_S: Final = 0.2
TAIL: Final = 16 * 1024
_CHUNK: Final = 64 * 1024
_DIES_WITHIN_S: Final = 10.0


# Looks at the run that a pid started and says why it has to end now, or None: the watch where no control group counts.
Watch = Callable[[int], str | None]


@dataclass(slots=True)
class Ending:
    """How a supervised process ended. `stopped` is set when we ended it, with the reason in `detail`."""

    returncode: int | None
    wall_s: float
    stopped: Status | None
    detail: str
    stdout_tail: str
    stderr_tail: str
    status_report: bytes


@dataclass(slots=True)
class _Tail:
    """The last bytes of a stream, and how many there were."""

    total: int = 0
    kept: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.kept += data
        del self.kept[:-TAIL]

    def text(self) -> str:
        # NUL can't be stored in a PostgreSQL text; it is as foreign to text as a broken UTF-8 sequence.
        return self.kept.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")


class _StopError(Exception):
    """The run has to end; carries the status."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(slots=True)
class _Results:
    """Splits the result pipe into lines and holds both caps."""

    limits: Limits
    on_result: ResultLine
    total: int = 0
    rest: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        if self.total > self.limits.result:
            raise _StopError(Status.OUTPUT_LIMIT, f"more than {self.limits.result} bytes of results")
        self.rest += data
        *lines, unfinished = self.rest.split(b"\n")
        for line in lines:
            self._check(line)
            self.on_result(bytes(line))
        self.rest = unfinished
        self._check(unfinished)

    def _check(self, line: bytearray) -> None:
        if len(line) > self.limits.result_line:
            raise _StopError(Status.OUTPUT_LIMIT, f"a result line of more than {self.limits.result_line} bytes")


def supervise(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str,
    inherited: Sequence[int],
    result: IO[bytes],
    status_report: IO[bytes] | None,
    limits: Limits,
    on_result: ResultLine,
    cancelled: Cancelled,
    kill: Callable[[subprocess.Popen[bytes]], None],
    watch: Watch | None = None,
    archive: tuple[IO[bytes], Archive] | None = None,
) -> Ending:
    """Run `argv` to its end and see to it that nothing of it is left.

    `inherited` descriptors are passed on and closed here once the process has them; `result`, `status_report` and that
    of the `archive` are our ends of pipes. Exceptions of `on_result`, of what takes the archive and of `cancelled` end
    the run and are raised again. Raises SandboxUnavailableError if nothing could be started.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(environment), cwd=directory, pass_fds=inherited, start_new_session=True, bufsize=0,
        )  # fmt: skip
    except OSError as error:
        raise SandboxUnavailableError(f"the run could not be started: {error}") from error
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    run = _Run(process, limits, on_result, result, status_report)
    if archive is not None:
        run.add(*archive)
    stopped: Status | None = None
    detail = ""
    try:
        try:
            run.follow(started + limits.wall_s, cancelled, watch)
        finally:
            kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DIES_WITHIN_S)
        run.drain()
    except _StopError as stop:
        stopped, detail = stop.status, stop.detail
        if stopped in {Status.TIMED_OUT, Status.OUT_OF_MEMORY}:
            with contextlib.suppress(_StopError):
                run.drain()  # what was finished in time counts, though the receiver was slow
        run.drain_text()
    finally:
        run.close()
    if process.returncode is None:
        detail = f"{detail}; it did not die within {_DIES_WITHIN_S:.0f} s of SIGKILL".lstrip("; ")
    elif run.results.rest and stopped is None:
        detail = f"the last result line was not finished ({len(run.results.rest)} bytes)"
    return Ending(
        returncode=process.returncode,
        wall_s=time.monotonic() - started,
        stopped=stopped,
        detail=detail,
        stdout_tail=run.stdout.text(),
        stderr_tail=run.stderr.text(),
        status_report=bytes(run.report),
    )


class _Run:
    """The pipes of one process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        on_result: ResultLine,
        result: IO[bytes],
        status_report: IO[bytes] | None,
    ) -> None:
        self.process = process
        self.limits = limits
        self.results = _Results(limits, on_result)
        self.stdout = _Tail()
        self.stderr = _Tail()
        self.report = bytearray()
        self._selector = selectors.DefaultSelector()
        self._exit = os.pidfd_open(process.pid)
        self._selector.register(self._exit, selectors.EVENT_READ, None)
        if process.stdout is None or process.stderr is None:
            raise ValueError("the process was started without pipes")
        self.add(process.stdout, self._printed(self.stdout))
        self.add(process.stderr, self._printed(self.stderr))
        self.add(result, self.results.add)
        if status_report is not None:
            self.add(status_report, self.report.extend)

    def follow(self, deadline: float, cancelled: Cancelled, watch: Watch | None) -> None:
        """Until the process exits, or _StopError."""
        next_look = 0.0
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise _StopError(Status.TIMED_OUT, f"still running after {self.limits.wall_s:g} s")
            if now >= next_look:
                next_look = now + TICK_S
                if cancelled():
                    raise _StopError(Status.CANCELLED, "cancelled while running")
                if watch is not None and (excess := watch(self.process.pid)):
                    raise _StopError(Status.OUT_OF_MEMORY, excess)
            if self._read(max(0.0, min(next_look, deadline) - now)):
                return

    def drain(self) -> None:
        """What is still in the pipes of a process that is gone; caps hold, as a survivor of mode OFF may go on."""
        while len(self._selector.get_map()) > 1 and any(key.data for key, _ in self._selector.select(0)):
            self._read(0)

    def drain_text(self) -> None:
        """What a stopped process had printed last: one pipe's worth (64 KiB) of each stream, without a cap."""
        for stream, tail in ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr)):
            with contextlib.suppress(BlockingIOError):
                tail.add(os.read(stream.fileno(), _CHUNK) if stream is not None else b"")

    def close(self) -> None:
        self._selector.close()
        os.close(self._exit)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _printed(self, tail: _Tail) -> Callable[[bytes], None]:
        def add(data: bytes) -> None:
            tail.add(data)
            if self.stdout.total + self.stderr.total > self.limits.output:
                raise _StopError(Status.OUTPUT_LIMIT, f"more than {self.limits.output} bytes were printed")

        return add

    def add(self, stream: IO[bytes], consume: Callable[[bytes], None]) -> None:
        """Hand everything that comes from a stream to `consume`, from now on."""
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, selectors.EVENT_READ, consume)

    def _read(self, timeout: float) -> bool:
        """Take what is there; True when the process has exited."""
        exited = False
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                exited = True
                continue
            data = os.read(key.fd, _CHUNK)
            if data:
                key.data(data)
            else:
                self._selector.unregister(key.fileobj)
        return exited
