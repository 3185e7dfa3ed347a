"""Ctrl-C in the middle of a check ends it at once, with its own exit code, and leaves no sandbox behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.processes import descendants

SLEEPS = """
import time
import torch


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return x.sin()
"""


def _hear_ctrl_c() -> None:
    """A shell that starts tests in the background makes its children deaf to SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_ends_a_check_and_its_sandboxes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPS)
    command = [sys.executable, "-m", "api.cli", "check", str(tmp_path), "--checks", "gradcheck"]
    check = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - one call, before anything runs
    )
    deadline = time.monotonic() + 60
    while not (below := descendants(check.pid)):
        assert time.monotonic() < deadline, "no sandbox was started"
        assert check.poll() is None
    check.send_signal(signal.SIGINT)
    out, err = check.communicate(timeout=60)
    assert check.returncode == 130
    assert out == ""
    assert "Interrupted" in err
    assert "Traceback" not in err
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline + 60, f"left behind: {below}"
        os.sched_yield()
