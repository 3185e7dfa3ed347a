"""What every launcher can do: run one command to its end.

A fault of the submitted code (crash, out of memory, time-out) is an `Outcome`; only a sandbox that can't be set up
raises. Launchers keep no state between runs: any number of threads may run at once, each run lives in the thread that
called.
"""

from __future__ import annotations

from typing import Protocol

from worker.sandbox.model import Archive, Cancelled, Command, Limits, Meter, Mode, Outcome, ResultLine


class Launcher(Protocol):
    """See the module docstring; `worker.sandbox.open_sandbox` gives the right one."""

    @property
    def mode(self) -> Mode: ...

    def run(
        self,
        command: Command,
        limits: Limits,
        on_result: ResultLine,
        cancelled: Cancelled,
        on_archive: Archive | None = None,
        *,
        meter: Meter | None = None,
    ) -> Outcome:
        """Run `command` to its end.

        `on_result` gets each complete result line, without its line end, while the command runs; `cancelled` is asked
        five times a second. `on_archive` gets what the command writes to the descriptor whose number is in
        `GRADPROOF_ARCHIVE_FD`, as it comes and without a limit; in mode OFF there is no such descriptor. An exception
        of any of them ends the run and is raised again. `meter` tells of the run's memory from its start on. Raises
        SandboxUnavailableError if the sandbox, or what the command wants to see inside, can't be set up.
        """
