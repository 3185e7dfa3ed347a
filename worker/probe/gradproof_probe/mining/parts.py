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
    found: dict[str, list[dict[str, Any]]] = {}

    def heard(call: Call) -> None:
        if call.inside is None or call.inside == call.target:
            return
        recipes = found.setdefault(call.target, [])
        if len(recipes) < RECIPES:
            constructor, inputs = call.forms[0]
            recipes.append(
                {
                    "constructor": constructor,
                    "inputs": list(inputs),
                    "provenance": f"called by {call.inside}",
                    "found_by": "parent",
                }
            )

    with Recorder(source_root, heard).watching():
        run()
    return found
