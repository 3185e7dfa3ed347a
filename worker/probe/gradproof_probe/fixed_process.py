"""The process that tries a fix: imports the target from the fixed source and runs what showed the fault once more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof_probe.answers import listen, settle_in
from gradproof_probe.fixed_source import UnusableFixError, put_in_place
from gradproof_probe.importing import NotRunnableError, import_target
from gradproof_probe.processes import LineWriter
from gradproof_probe.request import Entry, Request


@dataclass(frozen=True, slots=True)
class FixTask:
    """A fix that is to be tried, with the harness, the check and the evidence that the fault was shown with."""

    fingerprint: str
    fix: Any
    recipe: dict[str, Any]
    check: str
    evidence: dict[str, Any]


def run_fixed(
    request: Request,
    entry: Entry,
    task: FixTask,
    scratch: Path,
    deadline: float,
    writer: LineWriter,
    stand_ins: Collection[str] = (),
) -> None:
    """Say `fix`: whether it mends what it is for, with the same values elsewhere."""

    def say(reason: object, *, verified: bool = False) -> None:
        writer.write({"type": "fix", "fix": {task.fingerprint: {"verified": verified, "reason": str(reason)}}})

    settle_in(scratch, stand_ins)
    try:
        put_in_place(request.source_root, task.fix)
        resolved = import_target(request.source_root, entry.target)
    except UnusableFixError as error:
        say(f"the fix does not fit the source: {error}")
        return
    except NotRunnableError as error:
        say(f"with the fix, {error.detail}")
        return

    def work(child: LineWriter) -> None:
        from gradproof_probe.harness.recipe import Recipe
        from gradproof_probe.suspicions.fixes import verify

        evidence = {**task.evidence, "fingerprint": task.fingerprint, "seed": request.seed}
        child.write({"type": "fix", **verify(resolved, Recipe.from_wire(task.recipe), task.check, evidence)})

    said, end = listen(work, deadline)
    if (answer := said.get("fix")) is None:
        say(f"with the fix, its process {end.describe()}")
    else:
        say(answer.get("reason", ""), verified=answer.get("verified") is True)
