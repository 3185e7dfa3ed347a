"""The warm parent: imports torch once, forks a process per target, passes on what that process says.

It never imports submitted code, never runs a backward pass and never touches a device (a process that did can't fork
safely any more). It owns every wall-clock limit: whatever a target's process does, each entry of the batch ends with
a harness line, a result for every check that was asked for, and `target_finished`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gradproof_probe.errors import ProbeError
from gradproof_probe.lines import clean_harness, clean_result, not_run_line
from gradproof_probe.processes import End, LineWriter, harden_parent, signal_name, watch
from gradproof_probe.request import Entry, Request
from gradproof_probe.target_budget import Budget

# What a target's process is given on top of a limit that it enforces itself, before the supervisor does: forking,
# reaping and writing the line take milliseconds, but the machine may be busy.
SLACK_S: Final = 5.0
# Third-party modules that get a stand-in within one batch; the packages surveyed needed three at most.
MAX_STAND_INS: Final = 12


def supervise(request: Request, descriptor: int) -> None:
    """Answer the whole request. Raises `ProbeError` if torch can't be imported."""
    writer = LineWriter(descriptor)
    version, took = prepare(request)
    writer.write(
        {
            "type": "ready",
            "torch": version,
            "python": platform.python_version(),
            "devices": visible_devices(request),
            "import_torch_s": round(took, 3),
        }
    )
    if request.mine is not None:
        from gradproof_probe.mining.mine import mine

        # It runs submitted code in children of its own, and rebuilds what they say before it passes it on.
        mine(request.source_root, request.mine.targets, request.mine.budget_s, writer.write)
    else:
        _hold_all(request, writer)
    writer.write({"type": "done"})


def _hold_all(request: Request, writer: LineWriter) -> None:
    inductor_left = request.limits.inductor_s
    stand_ins: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gradproof-", ignore_cleanup_errors=True) as scratch:
        for entry in request.batch:
            conversation = Conversation(request, entry, writer, stand_ins)
            budget = Budget(inductor_s=inductor_left)
            conversation.hold(Path(scratch), budget)
            inductor_left = max(0.0, inductor_left - conversation.inductor_used_s)


def prepare(request: Request) -> tuple[str, float]:
    """Import what children need, so that each finds it loaded; torch's version, and how long `import torch` took."""
    harden_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True  # the source is read-only, and may be mounted for several runs
    # Inductor starts a pool of compile processes at import unless it is told not to: the parent must stay alone.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    try:
        import torch
    except ImportError as error:
        raise ProbeError(f"torch can't be imported: {error}") from error
    took = time.monotonic() - started
    torch.set_num_threads(1)  # a pool of threads does not survive fork
    if any("compile_equivalence" in entry.checks for entry in request.batch):
        from gradproof_probe.checks.compile_equivalence import preload

        preload()  # 2 to 4 s, once for the batch instead of once for each target
    warm_up()
    return str(torch.__version__), took


def warm_up() -> None:
    """Load the probe's own modules here once, not in every child."""
    import gradproof_probe.checks
    import gradproof_probe.harness.synthesis
    import gradproof_probe.target_process  # noqa: F401

    with contextlib.suppress(ImportError):
        # torch.autograd.grad imports it at its first call, and sympy with it: 0.5 s in every child.
        import torch.fx.experimental.symbolic_shapes  # noqa: F401


def visible_devices(request: Request) -> list[str]:
    """Asked for in a child: the first look at CUDA would make every later fork unusable."""
    if request.device == "cpu":
        return ["cpu"]
    if request.device == "sim":
        return ["cpu", "simulated"]
    names: list[str] = []

    def look(writer: LineWriter) -> None:
        import torch

        if torch.cuda.is_available():
            writer.write({"names": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]})

    def hear(line: bytes) -> None:
        names.extend(str(name)[:80] for name in json.loads(line)["names"])

    until = time.monotonic() + 60.0  # the first look at a driver takes up to 20 s on a cold machine
    watch(look, deadline=lambda: until, on_line=hear)
    return ["cpu", *(f"cuda:{index} {name}" for index, name in enumerate(names))]


class Conversation:
    """One entry of the batch: what its process said so far, and what is owed if it dies."""

    def __init__(self, request: Request, entry: Entry, writer: LineWriter, stand_ins: list[str]) -> None:
        self._request = request
        self._entry = entry
        self._writer = writer
        self._owed = list(dict.fromkeys(entry.checks))
        self._harness_said = False
        self._has_harness = False
        self._running: str | None = None
        self._doing = "being imported"
        self._deadline = 0.0
        self._stand_ins = stand_ins
        self._missing: str | None = None
        self.inductor_used_s = 0.0

    def hold(self, scratch: Path, budget: Budget) -> None:
        from gradproof_probe.target_process import run_target

        self._say({"type": "target_started"})
        while True:
            end = self._run(run_target, scratch, budget)
            if self._missing is None:
                break
            # Its absence alone made the import fail: once more, in a fresh process, with a stand-in for it.
            self._stand_ins.append(self._missing)
            self._missing = None
        self._settle(end)
        self._say({"type": "target_finished"})

    def _run(self, run_target: Callable[..., None], scratch: Path, budget: Budget) -> End:
        limits = self._request.limits
        begun = time.monotonic()
        self._deadline = begun + min(limits.import_s, limits.target_s)
        hard = begun + limits.target_s
        stand_ins = tuple(self._stand_ins)
        return watch(
            lambda writer: run_target(self._request, self._entry, scratch, budget, hard, writer, stand_ins),
            deadline=lambda: min(self._deadline, hard + SLACK_S),
            on_line=self._hear,
        )

    def _say(self, message: dict[str, Any]) -> None:
        self._writer.write({**message, "job": self._entry.job})

    def _hear(self, line: bytes) -> None:
        """A line that makes no sense is dropped: what is owed because of it is settled at the end."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        limits, now = self._request.limits, time.monotonic()
        kind = message.get("type")
        if kind == "imported" and not self._harness_said:
            self._doing = "looking for inputs"
            self._deadline = now + limits.harness_s + SLACK_S
        elif kind == "harness" and not self._harness_said and self._may_stand_in(message.get("missing")):
            self._missing = str(message["missing"])
        elif kind == "harness" and not self._harness_said and (cleaned := clean_harness(message)):
            self._harness_said = True
            self._has_harness = cleaned["harness"] is not None
            self._deadline = now + SLACK_S
            self._say(cleaned)
        elif kind == "check_started" and self._has_harness and message.get("check") in self._owed:
            self._running = str(message["check"])
            # The longest check is compile_equivalence with inductor, whose own budget comes on top.
            self._deadline = now + limits.check_s + limits.inductor_s + SLACK_S
            self._say({"type": "check_started", "check": self._running})
        elif kind == "check" and self._has_harness and (result := clean_result(message.get("result"), self._owed)):
            self._owed.remove(result["check"])
            self._running = None
            self._deadline = now + SLACK_S
            used = message.get("inductor_used_s")
            if isinstance(used, int | float) and 0 <= used < 1e6:
                self.inductor_used_s += used
            self._say({"type": "check", "result": result})

    def _may_stand_in(self, missing: object) -> bool:
        return (
            isinstance(missing, str)
            and missing.isidentifier()
            and len(missing) < 100
            and missing not in self._stand_ins
            and len(self._stand_ins) < MAX_STAND_INS
        )

    def _settle(self, end: End) -> None:
        """Say what the process did not live to say."""
        how = end.describe()
        if not self._harness_said:
            detail = f"the target's process {how} while {self._doing}{_tails(end)}"
            self._say(not_run_line(_reason(end), detail))
            return
        if not self._has_harness:
            return
        for check in self._owed:
            self._say(
                {
                    "type": "check",
                    "result": {
                        "check": check,
                        "verdict": "error",
                        "device": "cpu",
                        "summary": f"no result: the target's process {how}",
                        "diagnosis": {"cause": _reason(end).replace(" ", "_"), "text": how, "numbers": {}},
                        "path": self._entry.target.path,
                        "line": self._entry.target.line,
                        "evidence": _evidence(end),
                        "repro": None,
                        "duration_s": 0.0,
                    },
                }
            )


def _reason(end: End) -> str:
    # A SIGKILL that isn't ours stays "crashed" with the signal in the detail: only the sandbox, which counts the
    # kills of its memory limit, can tell that it was memory.
    return "timed out" if end.how == "timed_out" else "crashed"


def _evidence(end: End) -> dict[str, str]:
    tails = {"stdout_tail": end.stdout_tail[-1000:], "stderr_tail": end.stderr_tail[-1000:]}
    return tails if end.signal is None else {**tails, "signal": signal_name(end.signal)}


def _tails(end: End) -> str:
    said = (end.stderr_tail or end.stdout_tail).strip()
    return f"; its last words: {said[-300:]}" if said else ""
