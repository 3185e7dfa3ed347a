"""Runs a question in a child process with a time limit.

Some Functions keep state between calls, so one check must not meet what another one left. The answer travels as JSON;
a child that dies or takes too long answers nothing, and its parent goes on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

LONGEST_S = 180.0  # the longest check took 0.9 s on the machine on which the sets were measured


def in_child(question: Callable[[], Any], limit_s: float = LONGEST_S) -> Any:
    """What `question()` answers in a fork, `{"raised": …}` if it raises, None if it dies or is out of time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = question()
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the parent hears of it
            answer = {"raised": f"{type(error).__name__}: {error}"[:300]}
        try:
            _write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        written = _read(reader, time.monotonic() + limit_s)
        if written is None:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    return json.loads(written) if written else None


def _write(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]


def _read(reader: int, end: float) -> bytes | None:
    """Everything until the writer closes its end; None where that takes until `end`."""
    written = b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return None
        piece = os.read(reader, 1 << 16)
        if not piece:
            return written
        written += piece
