"""Runs a few lines of Python by a launcher, and tells what they said.

The lines find `say(value)` (one JSON result line) and `refusal(action)` (the name of the error that the kernel answers
with, or "done") in their scope, and `syscall(number, *arguments)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.sandbox import Launcher
from worker.sandbox.model import Command, Limits, Meter, Outcome

PRELUDE = """
import ctypes, errno, json, os, socket, sys
RESULT = int(os.environ["GRADPROOF_RESULT_FD"])
def say(value):
    data = json.dumps(value).encode() + b"\\n"
    while data:
        data = data[os.write(RESULT, data):]
def refusal(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
    return "done"
_libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    words = [ctypes.c_void_p(word) if isinstance(word, int) else word for word in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""

LIMITS = Limits(
    wall_s=20.0,
    memory=256 * 2**20,
    processes=32,
    tmp=8 * 2**20,
    job=4 * 2**20,
    shared_memory=2 * 2**20,
    output=64 * 1024,
    result=256 * 1024,
    result_line=64 * 1024,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run said on its result pipe, and how it ended."""

    lines: list[bytes]
    outcome: Outcome

    @property
    def said(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    @property
    def answer(self) -> Any:
        """The one thing that was said; shows how the run ended if it said something else."""
        assert len(self.lines) == 1, self.outcome
        return self.said[0]


@dataclass(frozen=True, slots=True)
class Inside:
    """A launcher and the interpreter that it shows inside."""

    launcher: Launcher
    interpreter: Path

    def run(
        self,
        code: str,
        *arguments: str,
        site: bool = False,
        request: bytes = b"{}",
        read_only: Mapping[Path, str] | None = None,
        environment: Mapping[str, str] | None = None,
        device_nodes: tuple[str, ...] = (),
        cancelled: Callable[[], bool] = lambda: False,
        on_result: Callable[[bytes], None] | None = None,
        meter: Meter | None = None,
        **limits: Any,
    ) -> Ran:
        lines: list[bytes] = []

        def receive(line: bytes) -> None:
            lines.append(line)
            if on_result is not None:
                on_result(line)

        flags = ("-I",) if site else ("-I", "-S")
        command = Command(
            interpreter=self.interpreter,
            argv=(str(self.interpreter), *flags, "-c", PRELUDE + code, *arguments),
            request=request,
            read_only=read_only or {},
            environment=environment or {},
            device_nodes=device_nodes,
        )
        outcome = self.launcher.run(command, replace(LIMITS, **limits), receive, cancelled, meter=meter)
        return Ran(lines, outcome)


def processes_with(token: str) -> dict[int, int]:
    """The processes of this machine that have `token` among their arguments, and the uid of each."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = entry.stat().st_uid
            except OSError:
                continue
    return found
