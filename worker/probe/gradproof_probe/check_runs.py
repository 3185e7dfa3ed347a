"""The checks of one target, each in a child of its own that may be killed. Runs in the target's process.

They come in the order of the request, which puts first what tells most in a second. What the time that is left to the
target does not suffice for is left out, and its result says so.
"""

from __future__ import annotations

import math
import time
from typing import Any

from gradproof_probe.answers import listen
from gradproof_probe.importing import Resolved, describe_error
from gradproof_probe.processes import LineWriter, signal_name
from gradproof_probe.request import Entry, Request
from gradproof_probe.target_budget import Budget
from gradproof_probe.variants import VARIED, gravest, variant_recipes

Wire = dict[str, Any]


class CheckRuns:
    """Runs checks of a target on its recipe (in wire form), within the limits of the request."""

    def __init__(
        self,
        request: Request,
        entry: Entry,
        resolved: Resolved,
        budget: Budget,
        target_deadline: float,
        *,
        unit_s: float = 0.0,
    ) -> None:
        self._request = request
        self._unit_s = unit_s
        self._entry = entry
        self._resolved = resolved
        self._budget = budget
        self._target_deadline = target_deadline

    def answer(self, recipe: Wire, check: str, *, later: int) -> Wire:
        """The `check` line, with what the variants of the recipe say. `later` checks come after this one."""
        if self._entry.target.kind == "function" and recipe.get("reason"):
            # Optimizers import torch's compiler at their first step, half a second: once, and not in each child.
            import torch._dynamo  # noqa: F401
        message = self._run(recipe, check)
        if check in VARIED and message["result"].get("verdict") == "pass":
            message["result"] = self._varied(recipe, check, message["result"], later)
        return message

    def _varied(self, recipe: Wire, check: str, usual: Wire, later: int) -> Wire:
        """In a share of what the target has left, so that the checks to come get theirs."""
        started = time.monotonic()
        until = started + min(self._request.limits.check_s, (self._target_deadline - started) / (1 + later))
        results = []
        for option, variant in variant_recipes(recipe):
            if time.monotonic() >= until:
                break
            results.append((option, self._run(variant, check, until)["result"]))
        return gravest(usual, results)

    def _run(self, recipe: Wire, check: str, until: float = math.inf) -> Wire:
        started = time.monotonic()
        if (left_out := self._left_out(check, self._target_deadline - started)) is not None:
            return {"type": "check", "result": left_out}
        extra = self._budget.inductor_s if check == "compile_equivalence" else 0.0
        deadline = min(started + self._request.limits.check_s + extra, self._target_deadline, until)
        said, end = listen(lambda child: self._work(child, recipe, check, started, deadline), deadline)
        message = said.get("check")
        if message is None:
            evidence = {"stdout_tail": end.stdout_tail[-1000:], "stderr_tail": end.stderr_tail[-1000:]}
            if end.signal is not None:
                evidence["signal"] = signal_name(end.signal)
            summary = f"the check's process {end.describe()}"
            message = {
                "type": "check",
                "result": self._plain_error(check, summary, evidence, time.monotonic() - started),
            }
        elif message["result"].get("verdict") == "error" and end.stderr_tail:
            message["result"]["evidence"]["stderr_tail"] = end.stderr_tail[-2000:]
        if check == "compile_equivalence":
            message["inductor_used_s"] = message["result"]["evidence"].get("inductor_s", 0.0)
        return message

    def _left_out(self, check: str, left_s: float) -> Wire | None:
        """The result of a check that is not begun; None for one that is."""
        from gradproof_probe.checks import find_check

        try:
            needed_s = find_check(check).needed_s(self._unit_s)
        except KeyError:
            return None  # it is run, and says that there is no such check
        if left_s > needed_s:
            return None
        of = f"of the target's {self._request.limits.target_s:g} s {max(left_s, 0.0):.0f} are left"
        summary = f"left out: {of}, and it takes {f'about {needed_s:.0f}' if needed_s >= 1 else 'more'}"
        evidence = {"left_out": "budget", "needed_s": round(needed_s, 2), "left_s": round(max(left_s, 0.0), 2)}
        return {**self._plain_error(check, summary, evidence, 0.0), "verdict": "skipped"}

    def _work(self, child: LineWriter, recipe: Wire, check: str, started: float, deadline: float) -> None:
        from gradproof_probe.checks import find_check
        from gradproof_probe.checks.base import CheckContext
        from gradproof_probe.checks.inapplicable import where_it_applies
        from gradproof_probe.checks.location import located
        from gradproof_probe.harness.recipe import Recipe

        context = CheckContext(
            resolved=self._resolved,
            recipe=Recipe.from_wire(recipe),
            source_root=self._request.source_root,
            device=self._request.device,
            seed=self._request.seed,
            # What a check may use of its limit; the rest is for its last evaluation to end and for writing.
            deadline=started + 0.8 * (deadline - started),
            inductor_s=self._budget.inductor_s,
            tolerances=self._request.tolerances,
            hypotheses=self._entry.hypotheses,
            device_memory=self._request.device_memory,
        )
        try:
            known = find_check(check)
        except KeyError:
            summary = f"this version of the probe has no check {check!r}"
            child.write({"type": "check", "result": self._plain_error(check, summary, {}, 0.0)})
            return
        try:
            result = where_it_applies(
                located(known.run(context), self._request.source_root),
                trains=self._resolved.target.kind == "function" and context.recipe.reason is not None,
            )
            if result.verdict == "fail":
                from gradproof_probe.repros.failures import with_repro

                result = with_repro(check, context, result)
        except BaseException as error:  # a check promises not to raise: if it does, it is our fault, and said so
            import traceback

            traceback.print_exc()
            summary = f"the check itself failed: {describe_error(error)}"
            child.write({"type": "check", "result": self._plain_error(check, summary, {}, 0.0)})
            return
        child.write({"type": "check", "result": result.to_wire(check, time.monotonic() - started)})

    def _plain_error(self, check: str, summary: str, evidence: Wire, took: float) -> Wire:
        return {
            "check": check,
            "verdict": "error",
            "device": "cuda" if check == "device_compare" and self._request.device == "cuda" else "cpu",
            "summary": summary,
            "diagnosis": None,
            "path": self._entry.target.path,
            "line": self._entry.target.line,
            "evidence": evidence,
            "repro": None,
            "duration_s": round(took, 4),
        }
