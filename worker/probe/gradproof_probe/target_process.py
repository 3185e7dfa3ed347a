"""The process of one target: imports it, lets a child find a harness, then one child per check.

From the import on this process belongs to the submitted code; the supervisor treats all it says as untrusted. It runs
no backward pass itself, so that each child forks from a process without autograd threads.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof_probe.importing import NotRunnableError, Resolved, describe_error, import_target
from gradproof_probe.lines import not_run_line
from gradproof_probe.missing_modules import install, loaded
from gradproof_probe.processes import End, LineWriter, signal_name, watch
from gradproof_probe.request import Entry, Request
from gradproof_probe.target_budget import Budget

if TYPE_CHECKING:  # torch is imported by the parent alone
    from gradproof_probe.harness.recipe import Recipe


def run_target(
    request: Request,
    entry: Entry,
    scratch: Path,
    budget: Budget,
    target_deadline: float,
    writer: LineWriter,
    stand_ins: Collection[str] = (),
) -> None:
    """Say `imported`, `harness`, then `check_started` and `check` for each check; the supervisor adds the job.

    `stand_ins` are the third-party modules known to be missing (see `missing_modules`).
    """
    home = scratch / f"target-{os.getpid()}"
    home.mkdir()
    os.chdir(home)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(home)
    install(stand_ins)
    try:
        resolved = import_target(request.source_root, entry.target)
    except NotRunnableError as error:
        writer.write({**not_run_line(error.reason, error.detail), "missing": error.missing})
        return
    writer.write({"type": "imported"})
    recipe = _find_harness(request, entry, resolved, target_deadline, writer)
    if recipe is None:
        return
    for check in dict.fromkeys(entry.checks):
        writer.write({"type": "check_started", "check": check})
        writer.write(_run_check(request, entry, resolved, recipe, check, budget, target_deadline))


def _find_harness(
    request: Request, entry: Entry, resolved: Resolved, target_deadline: float, writer: LineWriter
) -> dict[str, Any] | None:
    """The recipe as the child gave it (wire form), after passing it on; None if there is none."""
    deadline = min(time.monotonic() + request.limits.harness_s, target_deadline)

    def work(child: LineWriter) -> None:
        from gradproof_probe.harness.synthesis import find_recipe

        def tell(recipe: Recipe) -> None:
            child.write({"type": "harness", "harness": recipe.to_wire(), "not_run": None})

        try:
            # A second of the limit is kept for saying what was found: a killed child says nothing.
            tell(find_recipe(resolved, entry.declared, seed=request.seed, deadline=deadline - 1.0, found=tell))
        except NotRunnableError as error:
            child.write(not_run_line(error.reason, error.detail))

    message, end = _listen(work, deadline)
    if message is None:
        message = not_run_line(_reason(end), f"looking for inputs {end.describe()}{_words(end)}")
    harness = message.get("harness")
    if isinstance(harness, dict) and (missing := loaded()):
        # Whoever reads a verdict must know that a part of the package could not be itself.
        harness["provenance"] = (
            f"{harness.get('provenance', '')}; not installed, imported as a stand-in: {', '.join(missing)}"
        )
    writer.write(message)
    return harness if isinstance(harness, dict) else None


def _run_check(
    request: Request,
    entry: Entry,
    resolved: Resolved,
    recipe: dict[str, Any],
    check: str,
    budget: Budget,
    target_deadline: float,
) -> dict[str, Any]:
    started = time.monotonic()
    if started >= target_deadline:
        summary = f"not run: the checks before it used up the target's {request.limits.target_s:g} s"
        return {"type": "check", "result": _plain_error(request, entry, check, summary, {}, 0.0)}
    extra = budget.inductor_s if check == "compile_equivalence" else 0.0
    deadline = min(started + request.limits.check_s + extra, target_deadline)

    def work(child: LineWriter) -> None:
        from gradproof_probe.checks import find_check
        from gradproof_probe.checks.base import CheckContext
        from gradproof_probe.harness.recipe import Recipe

        context = CheckContext(
            resolved=resolved,
            recipe=Recipe.from_wire(recipe),
            source_root=request.source_root,
            device=request.device,
            seed=request.seed,
            # What a check may use of its limit; the rest is for its last evaluation to end and for writing.
            deadline=started + 0.8 * (deadline - started),
            inductor_s=budget.inductor_s,
            tolerances=request.tolerances,
            hypotheses=entry.hypotheses,
        )
        try:
            known = find_check(check)
        except KeyError:
            summary = f"this version of the probe has no check {check!r}"
            child.write({"type": "check", "result": _plain_error(request, entry, check, summary, {}, 0.0)})
            return
        try:
            result = known.run(context)
        except BaseException as error:  # a check promises not to raise: if it does, it is our fault, and said so
            import traceback

            traceback.print_exc()
            summary = f"the check itself failed: {describe_error(error)}"
            child.write({"type": "check", "result": _plain_error(request, entry, check, summary, {}, 0.0)})
            return
        child.write({"type": "check", "result": result.to_wire(check, time.monotonic() - started)})

    message, end = _listen(work, deadline)
    took = time.monotonic() - started
    if message is None:
        evidence = {"stdout_tail": end.stdout_tail[-1000:], "stderr_tail": end.stderr_tail[-1000:]}
        if end.signal is not None:
            evidence["signal"] = signal_name(end.signal)
        message = {
            "type": "check",
            "result": _plain_error(request, entry, check, f"the check's process {end.describe()}", evidence, took),
        }
    elif isinstance(message.get("result"), dict) and message["result"].get("verdict") == "error" and end.stderr_tail:
        message["result"].setdefault("evidence", {})["stderr_tail"] = end.stderr_tail[-2000:]
    if check == "compile_equivalence":
        evidence_used = (message.get("result") or {}).get("evidence") or {}
        message["inductor_used_s"] = evidence_used.get("inductor_s", 0.0)
    return message


def _plain_error(
    request: Request, entry: Entry, check: str, summary: str, evidence: dict[str, Any], took: float
) -> dict[str, Any]:
    return {
        "check": check,
        "verdict": "error",
        "device": "cuda" if check == "device_compare" and request.device == "cuda" else "cpu",
        "summary": summary,
        "diagnosis": None,
        "path": entry.target.path,
        "line": entry.target.line,
        "evidence": evidence,
        "repro": None,
        "duration_s": round(took, 4),
    }


def _listen(work: Callable[[LineWriter], None], deadline: float) -> tuple[dict[str, Any] | None, End]:
    """The last JSON object that the child said, and how it ended."""
    said: list[dict[str, Any]] = []

    def hear(line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            said[:] = [value]

    end = watch(work, deadline=lambda: deadline, on_line=hear)
    return (said[0] if said else None), end


def _reason(end: End) -> str:
    return "timed out" if end.how == "timed_out" else "crashed"


def _words(end: End) -> str:
    if end.signal == signal.SIGKILL:
        return ""
    said = (end.stderr_tail or end.stdout_tail).strip()
    return f"; its last words: {said[-300:]}" if said else ""
