"""A test that runs the probe's children in its own process ends nothing that was there before it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from gradproof_probe import processes

WAITS = "print('ready', flush=True); input()"


def waiting() -> subprocess.Popen[bytes]:
    """A process that has begun and waits."""
    started = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    return started


def test_what_was_started_before_a_test_outlives_the_children_of_the_probe(spared: Any) -> None:
    server = waiting()
    spared.since = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = waiting()
    end = processes.watch(lambda _writer: None, deadline=lambda: time.monotonic() + 60, on_line=lambda _line: None)
    assert end.clean
    assert server.poll() is None
    assert child.poll() is not None
    assert server.communicate(b"\n", timeout=60) == (b"", None)
    child.communicate()
