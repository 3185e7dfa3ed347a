"""Keeps the worker process of `gradproof serve` alive for as long as the service is up.

The worker is a child of its own, so that nothing it does can take the API down. If it dies it is started again, with
growing pauses; the leases of its jobs see to the rest. When this process dies, the kernel ends the worker too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from api.cli.console import say

_STOP_S: Final = 20.0
_LONGEST_PAUSE_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: a child of a process with threads may only make system calls.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class WorkerProcess:
    """A worker that is started again when it dies; a context manager. `device` names its GPU, if it is to have one."""

    def __init__(self, queues: Sequence[str], environment: Mapping[str, str], device: str | None = None) -> None:
        self._command = [sys.executable, "-m", "worker", ",".join(queues), *([] if device is None else [device])]
        self._environment = dict(environment)
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # PR_SET_PDEATHSIG is tied to the thread that forks: this one lives until the worker has ended.
        self._thread = threading.Thread(target=self._supervise, name="worker-supervisor")

    def __enter__(self) -> WorkerProcess:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _supervise(self) -> None:
        pause = 0.5
        while not self._stop.is_set():
            self._process = process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the worker in order
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing but one system call
            )
            while process.poll() is None and not self._stop.wait(0.2):
                pass
            if process.poll() is None:
                _end(process)
            elif not self._stop.is_set():
                say(f"The worker ended with {process.returncode}; it is started again in {pause:g} s.")
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
