"""Why a whole target's gradient differs: one of its custom Functions, or a cut that was meant, or nobody knows.

A module's verdict stays `fail` only if a Function in it fails by itself, or if nothing else explains the difference.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradproof_probe.gradients.breaks import Breaks
from gradproof_probe.gradients.examination import Examination, Examiner, Make, placed
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.gradients.functions import Recorder, submitted_functions
from gradproof_probe.gradients.whole_calls import FunctionCall
from gradproof_probe.harness.recipe import ExpressionError, default_dtype


class Explainer:
    """`make` builds the experiment of the whole target; `deadline` is monotonic seconds."""

    def __init__(self, make: Make, *, source_root: Path, seed: int, deadline: float) -> None:
        self._make = make
        self._root = source_root
        self._seed = seed
        self._deadline = deadline

    def explain(self, found: Examination) -> Examination:
        """`found` itself, or what it turns into once its cause is known."""
        if found.verdict != "fail" or found.place is not None:
            return found
        recorder, breaks = Recorder(self._root), Breaks(self._root)
        try:
            with default_dtype(torch.float32 if found.single else torch.float64):
                experiment = self._make(None if found.single else torch.float64)
                with recorder.watching(submitted_functions(self._root)), breaks.watching():
                    experiment.run()
        except (ForwardError, RuntimeError):
            return found
        inner = self._functions(recorder)
        for function, examination in inner:
            if examination.verdict == "fail":
                examination.evidence = {**found.evidence, "function": function.__qualname__}
                examination.function = function
                return placed(examination, function, self._root)
        if not found.mismatch:
            return found
        for function, examination in inner:
            if examination.by_design:
                return replace(
                    found,
                    verdict="inconclusive",
                    cause=examination.cause,
                    text=f"it differs from differences because of {function.__qualname__}: {examination.text}",
                )
        return self._cut(found, breaks)

    def _functions(self, recorder: Recorder) -> list[tuple[type, Examination]]:
        found = []
        for call in recorder.calls:
            if time.monotonic() > self._deadline:
                break
            examined = FunctionCall(
                call.function,
                call.args,
                source_root=self._root,
                seed=self._seed,
                deadline=self._deadline,
                picture=True,
            ).examine("first_order", thorough=False)
            found.append((call.function, examined))
        return found

    def _cut(self, found: Examination, breaks: Breaks) -> Examination:
        """Cuts, hooks, randomness and coarse arithmetic each explain a difference without a fault of the author's."""
        cuts = [item for item in breaks.found if item.what != "register_hook"]
        if cuts:
            first = next((item for item in cuts if item.place is not None), cuts[0])
            where = f"{first.place.path}:{first.place.line}" if first.place else "a library's code"
            vanishes = self._counterfactual()
            if vanishes is not False:
                why = (
                    "without it autograd agrees with the differences"
                    if vanishes
                    else "it can't be told apart from a fault"
                )
                return replace(
                    found,
                    verdict="inconclusive",
                    cause="stop_gradient",
                    place=first.place,
                    text=f"the gradient is cut by {first.what} at {where}; {why}",
                    numbers={"cuts": [f"{c.what} {c.place.path}:{c.place.line}" for c in cuts if c.place][:10]},
                )
        if any(item.what == "register_hook" for item in breaks.found):
            return replace(
                found, verdict="inconclusive", cause="gradient_hook", text="a hook may change gradients on purpose"
            )
        if found.drawn:
            return replace(
                found,
                verdict="inconclusive",
                cause="random",
                text="it draws random numbers: a path-wise gradient of a sampler isn't the derivative at a fixed seed",
            )
        if not found.precise:
            return replace(
                found, verdict="inconclusive", cause="imprecise", text="it doesn't compute in float64 throughout"
            )
        return found

    def _counterfactual(self) -> bool | None:
        """Whether autograd agrees once detach and no_grad do nothing; None if that can't be run."""

        def bridged(precision: torch.dtype | None) -> Experiment:
            # Only the call: constructors write to parameters under no_grad.
            experiment = self._make(precision)
            plain, breaks = experiment.call, Breaks(self._root)

            def call(*args: Any, **kwargs: Any) -> Any:
                with breaks.watching(bridge=True):
                    return plain(*args, **kwargs)

            experiment.call = call
            return experiment

        examiner = Examiner(bridged, source_root=self._root, seed=self._seed, deadline=self._deadline)
        try:
            found = examiner.examine()
        except (ExpressionError, RuntimeError):
            return None
        if found.verdict == "pass":
            return True
        return False if found.mismatch else None


def signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """An empty list where there is none to read (built-in callables)."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
