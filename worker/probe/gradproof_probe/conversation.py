"""One entry of a batch: what its process said so far, what is passed on, and what is owed if it dies.

It owns the wall-clock limits of the entry. Whatever the process does, the entry ends with a harness line, a result for
every check that was asked for, and `target_finished`. It never imports submitted code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gradproof_probe.lines import clean_fixes, clean_harness, clean_parts, clean_result, not_run_line
from gradproof_probe.processes import End, LineWriter, signal_name, watch
from gradproof_probe.protocol import UNSOLVED
from gradproof_probe.request import MOST_MINED, Entry, Mined, Request
from gradproof_probe.target_budget import Budget

# What a target's process is given on top of a limit that it enforces itself, before the supervisor does: forking,
# reaping and writing the line take milliseconds, but the machine may be busy.
SLACK_S: Final = 5.0
# Third-party modules that get a stand-in within one batch; the packages surveyed needed three at most.
MAX_STAND_INS: Final = 12
# Fixes of one target that are tried: each costs an import and a run.
MAX_FIXES: Final = 8


class Conversation:
    """With the processes of one entry. `stand_ins` is shared by the batch, which learns from each import."""

    def __init__(self, request: Request, entry: Entry, writer: LineWriter, stand_ins: list[str]) -> None:
        self._request = request
        self._entry = entry
        self._writer = writer
        self._owed = list(dict.fromkeys(entry.checks))
        self._harness_said = False
        self._harness: dict[str, Any] | None = None
        self._doing = "being imported"
        self._deadline = 0.0
        self._stand_ins = stand_ins
        self._missing: str | None = None
        self._may_wait = False
        self._unsolved: dict[str, Any] | None = None
        self._wanted: Collection[str] = ()
        # Results with a fix to try: they are passed on when that is known, after the process has ended.
        self._with_fixes: list[dict[str, Any]] = []
        self.parts: Mapping[str, tuple[Mined, ...]] = {}
        self.inductor_used_s = 0.0

    @property
    def target(self) -> str:
        """The name of the target."""
        return self._entry.target.name

    @property
    def waits(self) -> bool:
        """Whether it ended without a way to call its target, which another one may still show."""
        return self._unsolved is not None

    def leave_out(self) -> None:
        """The target is not begun: the time of the batch is over."""
        detail = f"the {self._request.limits.batch_s:g} s that were left of the analysis were over"
        self._say(not_run_line("budget spent", detail))
        self._say({"type": "target_finished"})

    def hold(
        self, scratch: Path, budget: Budget, *, calls: Collection[Mined] = (), wanted: Collection[str] = (),
        may_wait: bool = False,
    ) -> None:  # fmt: skip
        """Run the target. `calls` of it were recorded in others; those of `wanted` targets are recorded in this one.

        With `may_wait` it may end unfinished (`waits`): hold it once more, or `give_up`.
        """
        self._entry = replace(self._entry, mined=(*self._entry.mined, *calls)[: MOST_MINED + len(calls)])
        self._wanted, self._may_wait, self._unsolved = wanted, may_wait, None
        self._doing = "being imported"
        self._say({"type": "target_started"})
        while True:
            end = self._run(scratch, budget)
            if self._missing is None:
                break
            # Its absence alone made the import fail: once more, in a fresh process, with a stand-in for it.
            self._stand_ins.append(self._missing)
            self._missing = None
        if self._unsolved is not None:
            self._say({"type": "target_waiting", "not_run": self._unsolved["not_run"]})
            return
        self._settle(end)
        self._try_fixes(scratch)
        self._say({"type": "target_finished"})

    def give_up(self) -> None:
        """Nothing came that would help: what was found the first time holds."""
        assert self._unsolved is not None
        self._say(self._unsolved)
        self._say({"type": "target_finished"})

    def _run(self, scratch: Path, budget: Budget) -> End:
        from gradproof_probe.target_process import Surroundings, run_target

        limits = self._request.limits
        begun = time.monotonic()
        self._deadline = begun + min(limits.import_s, limits.target_s)
        hard = begun + limits.target_s
        around = Surroundings(scratch, budget, tuple(self._stand_ins), self._wanted)
        return watch(
            lambda writer: run_target(self._request, self._entry, around, hard, writer),
            deadline=lambda: min(self._deadline, hard + SLACK_S),
            on_line=self._hear,
        )

    def _say(self, message: dict[str, Any]) -> None:
        self._writer.write({**message, "job": self._entry.job})

    def _hear(self, line: bytes) -> None:
        """A line that makes no sense is dropped: what is owed because of it is settled at the end."""
        message = _message(line)
        limits, now = self._request.limits, time.monotonic()
        kind = message.get("type")
        settled = self._harness_said or self._unsolved is not None
        if kind == "imported" and not settled:
            from gradproof_probe.target_process import PARTS_S

            self._doing = "looking for inputs"
            self._deadline = now + limits.harness_s + PARTS_S + SLACK_S
        elif kind == "harness" and not settled and self._may_stand_in(message.get("missing")):
            self._missing = str(message["missing"])
        elif kind == "harness" and not settled and (cleaned := clean_harness(message)):
            self._deadline = now + SLACK_S
            self._take_harness(cleaned)
        elif kind == "parts" and self._harness is not None and not self.parts:
            self.parts = clean_parts(message, self._wanted)
        elif kind == "check_started" and self._harness is not None and message.get("check") in self._owed:
            # As long again for the variants; the longest check is compile_equivalence with inductor, whose own budget
            # comes on top.
            self._deadline = now + 2 * limits.check_s + limits.inductor_s + SLACK_S
            self._say({"type": "check_started", "check": str(message["check"])})
        elif kind == "check" and self._harness is not None:
            self._take_result(message, now)

    def _take_harness(self, cleaned: dict[str, Any]) -> None:
        not_run = cleaned["not_run"]
        if self._may_wait and not_run is not None and not_run["reason"] in UNSOLVED:
            self._unsolved = cleaned
            return
        self._harness_said = True
        self._harness = cleaned["harness"]
        self._say(cleaned)

    def _take_result(self, message: dict[str, Any], now: float) -> None:
        result = clean_result(message.get("result"), self._owed)
        if result is None:
            return
        self._owed.remove(result["check"])
        self._deadline = now + SLACK_S
        used = message.get("inductor_used_s")
        if isinstance(used, int | float) and 0 <= used < 1e6:
            self.inductor_used_s += used
        if self._fixes_of(result):
            self._with_fixes.append(result)
        else:
            self._say({"type": "check", "result": result})

    # ------------------------------------------------------------------------------------------ fixes

    def _fixes_of(self, result: Mapping[str, Any]) -> list[tuple[dict[str, Any], Any]]:
        """(record, fix) for each suspicion that this result confirms and that came with a fix."""
        fixes = {item.get("fingerprint"): item["fix"] for item in self._entry.hypotheses if item.get("fix")}
        records = result["evidence"].get("hypotheses")
        return [
            (record, fixes[record["fingerprint"]])
            for record in (records if isinstance(records, list) and fixes else ())
            if isinstance(record, dict)
            and record.get("outcome") == "confirmed"
            and isinstance(record.get("fingerprint"), str)
            and record["fingerprint"] in fixes
        ]

    def _try_fixes(self, scratch: Path) -> None:
        tried = 0
        for result in self._with_fixes:
            for record, fix in self._fixes_of(result):
                if tried < MAX_FIXES:
                    tried += 1
                    record["fix"] = self._outcome_of(record["fingerprint"], fix, result, scratch)
            # What the fixed code was compared with at ordinary inputs: of no further use.
            result["evidence"].pop("ordinary", None)
            self._say({"type": "check", "result": result})

    def _outcome_of(self, fingerprint: str, fix: Any, result: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
        from gradproof_probe.fixed_process import FixTask, run_fixed

        assert self._harness is not None
        task = FixTask(fingerprint, fix, self._recipe_of(result), result["check"], dict(result["evidence"]))
        heard: dict[str, dict[str, Any]] = {}

        def hear(line: bytes) -> None:
            heard.update(clean_fixes(_message(line), (fingerprint,)))

        until = time.monotonic() + self._request.limits.import_s + self._request.limits.check_s
        end = watch(
            lambda writer: run_fixed(self._request, self._entry, task, scratch, until, writer, tuple(self._stand_ins)),
            deadline=lambda: until + SLACK_S,
            on_line=hear,
        )
        return heard.get(fingerprint, {"verified": False, "reason": f"with the fix, its process {end.describe()}"})

    def _recipe_of(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The harness that the result is of: that of a variant, if the fault came with its option."""
        from gradproof_probe.variants import variant_recipes

        assert self._harness is not None
        return dict(variant_recipes(self._harness)).get(result["evidence"].get("option", ""), self._harness)

    # ------------------------------------------------------------------------------------------ the end

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
        if self._harness is None:
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


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


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
