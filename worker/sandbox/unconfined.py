"""Mode OFF, `--no-sandbox`: for code that one would run oneself.

Clock, output caps, control group and process-group kill stay; nothing is hidden or refused. A process that leaves the
process group and no control group holds outlives the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from worker.sandbox import usage
from worker.sandbox.arguments import Tools
from worker.sandbox.cgroups import Hierarchy
from worker.sandbox.model import RESULT_FD, Archive, Cancelled, Command, Limits, Meter, Mode, Outcome, ResultLine
from worker.sandbox.runs import enter_group, entered, metered, open_pipe, outcome_of
from worker.sandbox.supervision import supervise

# Not handed to code that runs unconfined: ours (they hold secrets) and what would bend its interpreter.
_WITHHELD: Final = ("GRADPROOF_", "PYTHON")


class UnconfinedLauncher:
    """`--no-sandbox`: for code that one would run oneself. Clock, caps and limits stay; nothing is hidden."""

    mode: Final = Mode.OFF

    def __init__(self, *, tools: Tools, hierarchy: Hierarchy | None) -> None:
        self._tools = tools
        self._hierarchy = hierarchy

    def run(
        self,
        command: Command,
        limits: Limits,
        on_result: ResultLine,
        cancelled: Cancelled,
        on_archive: Archive | None = None,  # noqa: ARG002 - nothing is handed out by what is not confined
        *,
        meter: Meter | None = None,
    ) -> Outcome:
        with ExitStack() as stack:
            job = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradproof-job-")))
            (job / "request.json").write_bytes(command.request)
            group = enter_group(stack, self._hierarchy, limits)
            watch = None if group is not None else usage.MemoryWatch(limits.memory)
            stack.enter_context(metered(meter, group, watch))
            result, result_end = open_pipe(stack)
            places = {inside: host for host, inside in command.read_only.items()} | {"/job": job}
            argv = [_on_the_host(word, places) for word in command.argv]
            asked = {name: _on_the_host(value, places) for name, value in command.environment.items()}
            environment = {**_inherited_environment(), **asked, RESULT_FD: str(result_end)}

            def kill(process: subprocess.Popen[bytes]) -> None:
                # The leader is not reaped yet, so that the group's number is still its own.
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                if group is not None:
                    group.kill()

            ending = supervise(
                entered(self._tools, group, limits, argv), environment=environment, directory=str(job),
                inherited=[result_end], result=result, status_report=None, limits=limits, on_result=on_result,
                cancelled=cancelled, kill=kill, watch=watch,
            )  # fmt: skip
            return outcome_of(self.mode, ending, group, watch)


def _on_the_host(word: str, places: Mapping[str, Path]) -> str:
    """`word`, with the inside path that it is, or begins with, replaced: there is no inside in this mode."""
    for inside, host in places.items():
        if word == inside or word.startswith(f"{inside}/"):
            return f"{host}{word[len(inside) :]}"
    return word


def _inherited_environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)}
