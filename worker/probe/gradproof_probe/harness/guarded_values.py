"""Guards on the values of a tensor, such as `torch.all((x >= 0) & (x <= 1))`: which kinds of values would pass.

No solving of inequalities: each kind of values that an argument can be made of is drawn once and put in place of the
argument in the condition. Only torch's own functions run for that (see `conditions`), nothing of the submitted code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.harness.arguments import Argument, Values
from gradproof_probe.harness.conditions import holds
from gradproof_probe.harness.raised_conditions import Guard
from gradproof_probe.harness.scene import Scene

# The least special that passes comes first.
_FLOATS: Final[tuple[Values, ...]] = (
    "normal", "positive", "unit", "symmetric_unit", "simplex", "direction", "orthogonal", "symmetric", "definite",
    "invertible", "sorted", "boxes", "ones",
)  # fmt: skip
_HIGHS: Final = (4, 2, 8, 1)  # integers below
MOST: Final = 3


def guarded_values(scene: Scene, guard: Guard) -> Iterator[tuple[int, Argument]]:
    """(which leaf, the leaf with values that pass), for conditions that speak of an argument's tensor by name."""
    if holds(guard.condition, guard.names) is not False:
        return
    for name in dict.fromkeys(n.id for n in ast.walk(guard.condition) if isinstance(n, ast.Name)):
        value = guard.names.get(name)
        index = scene.leaf_of(value)
        if index is None or type(value) is not torch.Tensor or not scene.leaves[index].is_tensor:
            continue
        passing = 0
        for leaf in _others(scene.leaves[index]):
            drawn = _drawn(leaf)
            if drawn is not None and holds(guard.condition, guard.names, {name: drawn}) is True:
                yield index, leaf
                passing += 1
            if passing >= MOST:
                break


def _others(leaf: Argument) -> Iterator[Argument]:
    floats = [replace(leaf, kind="float", values=values) for values in _FLOATS]
    integers = [replace(leaf, kind="int", high=high) for high in _HIGHS]
    others = [*floats, *integers] if leaf.kind == "float" else [*integers, replace(leaf, kind="bool"), *floats]
    yield from (other for other in others if other != leaf)


def _drawn(leaf: Argument) -> Any:
    """The tensor that the leaf's own expression makes. The random numbers of the trial stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        try:
            return eval(leaf.value(), {"torch": torch})
        except Exception:  # no such values of this shape
            return None
