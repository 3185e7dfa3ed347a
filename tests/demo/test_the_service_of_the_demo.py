"""The demo starts its own service and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.deployment.compose import ROOT
from tools.demo import running_service

START_S = 120.0


def processes_naming(directory: Path) -> list[str]:
    """Command lines that name `directory`, of processes that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def test_the_service_answers_and_is_gone_afterwards(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        headers = {"Authorization": f"Bearer {service.token}"}
        listed = httpx.get(f"{service.url}/api/v1/analyses", headers=headers, timeout=30, trust_env=False)
        assert listed.status_code == httpx.codes.OK
        assert processes_naming(tmp_path)
    assert processes_naming(tmp_path) == []


def test_an_interrupted_demo_stops_its_service_and_removes_its_data(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "tools.demo"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + START_S
        while "Submitting" not in (tmp_path / "log").read_text(encoding="utf-8"):
            assert demo.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 130
    finally:
        demo.kill()
        demo.wait()
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.glob("gradproof-demo-*")) == []
