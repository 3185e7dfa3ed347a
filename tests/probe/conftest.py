"""Runs the probe as the worker does, as a process of its own, and reads what it says line by line.

A request over many targets imports torch once: tests of one file share a run wherever they can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "probe"
CASES = ROOT / "tests" / "cases"
PROBE = ROOT / "worker" / "probe"


@dataclass(frozen=True)
class Spoken:
    """What the probe said, and how it ended."""

    lines: list[dict[str, Any]]
    status: int
    stdout: str
    stderr: str
    wall_s: float

    def of(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("job") == job and line["type"] == kind]

    def result(self, job: str, check: str = "gradcheck") -> dict[str, Any]:
        found = [line["result"] for line in self.of(job, "check") if line["result"]["check"] == check]
        assert len(found) == 1, f"{job} {check}: {self.of(job, 'harness')} {self.stderr}"
        result: dict[str, Any] = found[0]
        return result

    def not_run(self, job: str) -> dict[str, str]:
        (line,) = self.of(job, "harness")
        assert line["harness"] is None, line
        reason: dict[str, str] = line["not_run"]
        return reason

    def harness(self, job: str) -> dict[str, Any]:
        (line,) = self.of(job, "harness")
        assert line["harness"] is not None, line["not_run"]
        found: dict[str, Any] = line["harness"]
        return found


def entry(
    kind: str,
    target: str,
    *,
    checks: Sequence[str] = ("gradcheck",),
    inputs: Sequence[str] | None = None,
    constructor: str | None = None,
    job: str | None = None,
    line: int = 1,
) -> dict[str, Any]:
    """`target` is `module:qualname`; `inputs` make the harness a declared one."""
    module, _, qualname = target.partition(":")
    declared = None
    if inputs is not None:
        declared = {"constructor": constructor, "inputs": list(inputs), "provenance": "pyproject.toml:1"}
    return {
        "job": job or qualname,
        "target": {
            "name": target,
            "kind": kind,
            "path": f"{module.replace('.', '/')}.py",
            "line": line,
            "import_root": "",
            "module": module,
            "qualname": qualname,
        },
        "declared": declared,
        "hypotheses": [],
        "checks": list(checks),
    }


def speak(
    source: Path,
    batch: Sequence[Mapping[str, Any]],
    *,
    device: str = "cpu",
    limits: Mapping[str, float] | None = None,
    environment: Mapping[str, str] | None = None,
    request: bytes | None = None,
) -> Spoken:
    """Start the probe with `python -I` on the package's directory alone, as the sandbox does."""
    whole = {
        "protocol": 1,
        "source_root": str(source),
        "device": device,
        "seed": 0,
        "isolated": False,
        "limits": {"inductor_s": 0, **(limits or {})},
        "tolerances": {},
        "batch": list(batch),
    }
    start = f"import sys; sys.path.insert(0, {str(PROBE)!r}); from gradproof_probe.main import main; main()"
    read, write = os.pipe()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "request.json")
        path.write_bytes(request if request is not None else json.dumps(whole).encode())
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", start, str(path)],
            env={"PATH": os.environ["PATH"], "GRADPROOF_RESULT_FD": str(write), **(environment or {})},
            pass_fds=(write,),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            lines = [json.loads(line) for line in stream]
        stdout, stderr = process.communicate()
    took = time.monotonic() - begun
    return Spoken(lines, process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"), took)
