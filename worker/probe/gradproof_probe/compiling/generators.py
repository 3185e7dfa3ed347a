"""Compiled code that returns the same but leaves a random generator elsewhere: what is drawn afterwards is another.

AOTAutograd leaves out what nobody uses, and a draw whose numbers nobody uses still moves the generator in eager mode.
"""

from __future__ import annotations

from typing import Any

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.explaining import concerning
from gradproof_probe.compiling.running import observed
from gradproof_probe.equivalence.generators import left_elsewhere
from gradproof_probe.equivalence.observation import Mode, Observation
from gradproof_probe.training.random_draws import Watch


def moved_otherwise(
    context: CheckContext, mode: Mode, stage: str, plain: Observation, compiled: Observation
) -> Answer | None:
    """None where generators end alike, or end otherwise from one plain run to the next."""
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
    places = {draw.place for draw in watch.draws}
    name = moved[0].rpartition(": ")[2]
    text = (
        f"under backend {stage} in {mode} mode all results are the same, but the generator {name} stands elsewhere "
        "after the call than after an eager one: what is drawn next is another (a draw that nobody uses is left out)"
    )
    place = next(iter(places)) if len(places) == 1 else None
    return concerning(context, Answer("fail", "generator_left_elsewhere", text, place, {"generator": name}))
