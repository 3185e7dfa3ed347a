"""What a running parent shows of its parts: the constructions and calls of the package's other targets.

The caller runs a harness that builds and calls the parent; whatever it builds and calls on its way is written down as
recipes of those parts. Nothing is run for it besides the harness itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gradproof_probe.mining.recorder import Call, Recorder

RECIPES: Final = 5


def record_parts(run: Callable[[], object], source_root: Path) -> dict[str, list[dict[str, Any]]]:
    """Run `run` and return recipes of what it called, by target name. What `run` raises is raised.

    `run` must build the parent as well as call it: a module whose construction wasn't seen can't be written down. The
    parent itself, called by nothing of the package, is left out.
    """
    drawn: dict[str, list[dict[str, Any]]] = {}
    exact: dict[str, list[dict[str, Any]]] = {}

    def heard(call: Call) -> None:
        if call.inside is None or call.inside == call.target:
            return
        # The numbers that were seen come after all that are drawn anew: they are for what runs with nothing else.
        for forms, (constructor, inputs) in zip((drawn, exact), call.forms, strict=False):
            forms.setdefault(call.target, []).append(
                {
                    "constructor": constructor,
                    "inputs": list(inputs),
                    "provenance": f"called by {call.inside}",
                    "found_by": "parent",
                }
            )

    # The harness is small already; what is made smaller still may not run, and nothing is tried here.
    with Recorder(source_root, heard, smaller=False).watching():
        run()
    return {target: [*recipes, *exact.get(target, ())][:RECIPES] for target, recipes in drawn.items()}
