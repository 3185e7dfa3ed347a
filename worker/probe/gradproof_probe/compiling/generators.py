"""Compiled code that returns the same but leaves a random generator elsewhere: what is drawn afterwards is another.

AOTAutograd leaves out what nobody uses, and a draw whose numbers nobody uses still moves the generator in eager mode.
That is told and never held against the code: all that the call computes is the same, and no seed was promised anything.
"""

from __future__ import annotations

from typing import Any

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.running import observed
from gradproof_probe.equivalence.generators import left_elsewhere
from gradproof_probe.equivalence.observation import Mode, Observation
from gradproof_probe.training.random_draws import Watch


def moved_otherwise(
    context: CheckContext, mode: Mode, stage: str, plain: Observation, compiled: Observation
) -> str | None:
    """What is to be told; None where generators end alike, or end otherwise from one plain run to the next."""
    moved = left_elsewhere(plain.generators, compiled.generators)
    if not moved:
        return None
    watch = Watch(context.source_root)

    def watched(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with watch:
                return call(*args, **kwargs)

        return run

    if left_elsewhere(plain.generators, observed(context, mode, wrap=watched).generators):
        return None
    lines = sorted({f"{draw.place.path}:{draw.place.line}" for draw in watch.draws if draw.place is not None})
    name = moved[0].rpartition(": ")[2]
    drawn = f"; it draws at {', '.join(lines[:3])}" if lines else ""
    return (
        f"under backend {stage} in {mode} mode all results are the same, but the generator {name} stands elsewhere "
        "after the call than after an eager one: what is drawn next is another (a draw that nobody uses is left out"
        f"{drawn})"
    )
