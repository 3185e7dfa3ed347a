"""The process of one target: imports it, lets a child find a harness, then one child per check.

From the import on this process belongs to the submitted code; the supervisor treats all it says as untrusted. It runs
no backward pass itself, so that each child forks from a process without autograd threads.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradproof_probe.answers import listen, settle_in
from gradproof_probe.check_runs import CheckRuns
from gradproof_probe.importing import NotRunnableError, Resolved, import_target
from gradproof_probe.lines import PART_CALLS, PARTS, TEXT, not_run_line
from gradproof_probe.missing_modules import loaded
from gradproof_probe.processes import End, LineWriter
from gradproof_probe.request import Entry, Request
from gradproof_probe.target_budget import Budget

if TYPE_CHECKING:  # torch is imported by the parent alone
    from gradproof_probe.harness.recipe import Recipe

# One more call of a target that has just been called: what it takes beyond that is somebody else's time.
PARTS_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a target's process is given by its batch.

    `stand_ins` are the third-party modules known to be missing (see `missing_modules`). `wanted` are other targets
    whose calls are of interest, should this one make any.
    """

    scratch: Path
    budget: Budget
    stand_ins: Collection[str] = ()
    wanted: Collection[str] = ()


def run_target(
    request: Request, entry: Entry, around: Surroundings, target_deadline: float, writer: LineWriter
) -> None:
    """Say `imported`, `harness`, perhaps `parts`, then `check_started` and `check` for each check.

    The supervisor adds the job.
    """
    settle_in(around.scratch, around.stand_ins)
    try:
        resolved = import_target(request.source_root, entry.target)
    except NotRunnableError as error:
        writer.write({**not_run_line(error.reason, error.detail), "missing": error.missing})
        return
    writer.write({"type": "imported"})
    found = _find_harness(request, entry, resolved, around, target_deadline, writer)
    if found is None:
        return
    recipe, unit_s = found
    runs = CheckRuns(request, entry, resolved, around.budget, target_deadline, unit_s=unit_s)
    checks = list(dict.fromkeys(entry.checks))
    for position, check in enumerate(checks, 1):
        writer.write({"type": "check_started", "check": check})
        writer.write(runs.answer(recipe, check, later=len(checks) - position))


def _find_harness(
    request: Request,
    entry: Entry,
    resolved: Resolved,
    around: Surroundings,
    target_deadline: float,
    writer: LineWriter,
) -> tuple[dict[str, Any], float] | None:
    """The recipe as the child gave it (wire form), after passing it on, and what a call takes; None without a recipe.

    The seconds are of one forward and backward, and 0 where nobody measured them.
    """
    wanted = around.wanted
    deadline = min(time.monotonic() + around.budget.harness_s, target_deadline)

    def work(child: LineWriter) -> None:
        from gradproof_probe.harness.synthesis import find_recipe
        from gradproof_probe.suspicions.suspect import read_suspects

        def tell(recipe: Recipe) -> None:
            harness = recipe.to_wire()
            child.write({"type": "harness", "harness": harness, "not_run": None, "kind": resolved.target.kind})

        try:
            # A second of the limit is kept for saying what was found: a killed child says nothing.
            until = deadline - 1.0
            recipe = find_recipe(
                resolved,
                entry.declared,
                mined=entry.mined,
                seed=request.seed,
                deadline=until,
                suspected=any(suspect.cuts_the_gradient for suspect in read_suspects(entry.hypotheses)),
                found=tell,
            )
        except NotRunnableError as error:
            child.write(not_run_line(error.reason, error.detail))
            return
        tell(recipe)
        child.write({"type": "unit", "seconds": _unit_s(request, resolved, recipe)})
        if wanted and resolved.target.kind == "module":
            child.write({"type": "parts", "parts": _parts(request, resolved, recipe, wanted)})

    said, end = listen(work, deadline + PARTS_S)
    message = said.get("harness")
    if message is None:
        message = not_run_line(_reason(end), f"looking for inputs {end.describe()}{_words(end)}")
    harness = message.get("harness")
    if isinstance(harness, dict) and (missing := loaded()):
        # Whoever reads a verdict must know that a part of the package could not be itself.
        harness["provenance"] = (
            f"{harness.get('provenance', '')}; not installed, imported as a stand-in: {', '.join(missing)}"
        )
    writer.write(message)
    if isinstance(harness, dict) and "parts" in said:
        writer.write(said["parts"])
    unit_s = said.get("unit", {}).get("seconds")
    return (harness, max(0.0, unit_s) if isinstance(unit_s, float) else 0.0) if isinstance(harness, dict) else None


def _unit_s(request: Request, resolved: Resolved, recipe: Recipe) -> float:
    """Seconds of one forward and backward, which has been run before; 0 if it doesn't come to its end."""
    from gradproof_probe.harness.recipe import ExpressionError, build
    from gradproof_probe.harness.trial import attempt

    try:
        built = build(resolved, recipe, seed=request.seed)
    except ExpressionError:
        return 0.0
    started = time.monotonic()
    attempt(built, seed=request.seed, seconds=PARTS_S)
    return time.monotonic() - started


def _parts(
    request: Request, resolved: Resolved, recipe: Recipe, wanted: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """How the wanted targets are called while this one runs; nothing if it does not come through."""
    from gradproof_probe.harness.recipe import build
    from gradproof_probe.harness.trial import time_limit
    from gradproof_probe.mining.parts import record_parts

    def run() -> None:
        built = build(resolved, recipe, seed=request.seed)
        built.call(*built.args, **built.kwargs)

    try:
        with time_limit(PARTS_S):
            found = record_parts(run, request.source_root)
    except Exception:
        return {}
    # What is too long for a line is dropped, not cut: half an expression says something else.
    short = {
        name: [call for call in calls if sum(map(len, call["inputs"])) <= TEXT][:PART_CALLS]
        for name, calls in found.items()
        if name in wanted
    }
    return dict(list(short.items())[:PARTS])


def _reason(end: End) -> str:
    return "timed out" if end.how == "timed_out" else "crashed"


def _words(end: End) -> str:
    if end.signal == signal.SIGKILL:
        return ""
    said = (end.stderr_tail or end.stdout_tail).strip()
    return f"; its last words: {said[-300:]}" if said else ""
