"""Checkpoints: with and without recomputation the same must come out, in the gradients and in the buffers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.utils.checkpoint

from gradproof_probe.gradients.attribution import relative
from gradproof_probe.suspicions.bench import Bench, differs
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached

# What checkpoint takes for itself; the rest belongs to the function.
_OPTIONS: Final = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


class Recomputed:
    """GP801 to GP807."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        if (unreached := bench.unreached(suspect)) is not None:
            return unreached
        used: list[int] = []
        for steps in (1, 2):
            # Two steps: state that the recomputation moves shows in the next call.
            recomputed = bench.call(steps=steps)
            with _directly(bench, used):
                direct = bench.call(steps=steps)
            if not used:
                return not_reached("no checkpoint was called")
            if direct.error is not None:
                return not_reached(f"the call raises without the checkpoint as well: {direct.words}")
            if recomputed.error is not None:
                return confirmed(f"with the checkpoint backward raises, without it not: {recomputed.words}")
            what = differs(direct, recomputed, buffers=True)
            if what:
                after = "" if steps == 1 else " after two steps"
                return confirmed(f"with the checkpoint {what} is another than without it{after}", differs=what)
        return held("outputs, gradients and buffers are the same with the checkpoint as without it")


@contextmanager
def _directly(bench: Bench, used: list[int]) -> Iterator[None]:
    """Every name that the submitted code has for `checkpoint` calls the function at once, and keeps what it needs."""
    original = torch.utils.checkpoint.checkpoint

    def direct(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        used.append(1)
        return function(*args, **{name: value for name, value in kwargs.items() if name not in _OPTIONS})

    places: list[tuple[dict[str, Any], str]] = []
    for module in list(sys.modules.values()):
        filename = getattr(module, "__file__", None)
        if isinstance(filename, str) and relative(filename, bench.source_root) is not None:
            names = vars(module)
            places += [(names, name) for name, value in list(names.items()) if value is original]
    places.append((vars(torch.utils.checkpoint), "checkpoint"))
    for names, name in places:
        names[name] = direct
    try:
        yield
    finally:
        for names, name in places:
            names[name] = original
