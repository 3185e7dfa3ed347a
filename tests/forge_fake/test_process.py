"""The fake forge by hand: `python -m tools.fake_forge`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


def test_it_runs_as_a_process_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "tools.fake_forge", "--port", "0", "--secure-port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(6)]
        address = told[0].split()[1]
        assert httpx.get(f"{address}/meta", verify=False).status_code == 200
        assert "octo/demo#1" in told[3]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
