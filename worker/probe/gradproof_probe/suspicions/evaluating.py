"""Evaluation mode: the same input must give the same output, and must leave the module as it is."""

from __future__ import annotations

from typing import Any

import torch

from gradproof_probe.suspicions.bench import Bench, close, differs
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached


class _Passing:
    """The local tensors in front of the statement, in the order in which they come."""

    def __init__(self) -> None:
        self.calls = 0
        self.before: list[torch.Tensor] = []

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self.calls += 1
            self.before += [
                item.detach().clone() for _, item in sorted(value.items()) if isinstance(item, torch.Tensor)
            ]
        return value


class Noise:
    """GP714, GP720, GP731: random numbers that are drawn in evaluation mode."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        runs = []
        for draw in (0, 1):
            passing = _Passing()
            with bench.watching(suspect, passing):
                runs.append((bench.call(training=False, draw=draw, backward=False), passing))
        (first, before), (second, after) = runs
        if not before.calls:
            return not_reached("in evaluation mode no call came to this line")
        if first.error is not None or second.error is not None:
            return not_reached(f"the call raises in evaluation mode: {first.words or second.words}")
        pairs = list(zip(before.before, after.before, strict=False))
        if any(not close(a, b, 1e-6) for a, b in pairs):
            return held("what comes to this line is random already")
        what = differs(first, second)
        if what:
            return confirmed(
                f"in evaluation mode {what} of the same input differs from call to call, and what comes to this line "
                "is the same",
                shown_by="evaluation",
                differs=what,
            )
        return held("in evaluation mode two calls gave the same outputs")


class MovingStatistics:
    """GP730, GP733: buffers that a call in evaluation mode changes."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        passing = _Passing()
        with bench.watching(suspect, passing):
            once = bench.call(training=False, backward=False)
        twice = bench.call(training=False, backward=False, steps=3)
        if not passing.calls:
            return not_reached("in evaluation mode no call came to this line")
        if once.error is not None or twice.error is not None:
            return not_reached(f"the call raises in evaluation mode: {once.words or twice.words}")
        moved = [name for name, value in once.buffers.items() if not close(value, twice.buffers[name], 1e-7)]
        if moved:
            return confirmed(f"calls in evaluation mode change {', '.join(moved[:3])}", buffers=moved[:8])
        return held("three calls in evaluation mode left every buffer as it was")
