"""Two training steps in a row: what a module keeps from the first must not drag its graph into the second.

Everything else here puts a module's state back between evaluations, so only this can see a kept graph.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import ForwardTraces, InPlaceWrites, Place, relative
from gradproof_probe.gradients.examination import Examination
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError, differentiable
from gradproof_probe.harness.recipe import default_dtype

SECOND_TIME: Final = "backward through the graph a second time"
# A stateful module with such a method asks its caller to cut the graph between steps.
CUTTING_METHOD: Final = re.compile(r"reset|detach|repackage|clear|init_hidden|init_state|new_sequence", re.IGNORECASE)


def kept_graph(make: Callable[[torch.dtype | None], Experiment], *, source_root: Path) -> Examination | None:
    """None if two steps run, or if they can't be run for another reason (which other parts report)."""
    traces, writes = ForwardTraces(source_root), InPlaceWrites(source_root)
    with default_dtype(torch.float64):
        experiment = make(torch.float64)
        module = experiment.instance
        if module is None:
            return None
        try:
            with traces.open(), writes:
                _step(experiment)
                carried = _carriers(module)
                _step(experiment, fresh=False)
        except ForwardError:
            return None
        except BackwardError as error:
            if SECOND_TIME not in str(error.cause):
                return None
        else:
            return None
    methods = sorted(name for name in vars(type(module)) if CUTTING_METHOD.search(name))
    text = "the second step's backward runs into the first step's graph"
    if carried:
        text += f": {', '.join(name for _, name in carried[:3])} keeps it"
    found = Examination("fail", "graph_kept_between_steps", text)
    found.place = _assignment(carried, source_root) or traces.place()
    if methods:
        found.verdict = "inconclusive"
        found.text = f"{text}; the caller may be meant to call {methods[0]}() between steps"
    return found


def _step(experiment: Experiment, *, fresh: bool = True) -> None:
    outputs = differentiable(experiment.run(restore=fresh))
    experiment.gradients(outputs, [torch.ones_like(output.value) for output in outputs])


def _carriers(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """Attributes and buffers that hold a tensor with a graph behind it."""
    found: list[tuple[torch.nn.Module, str]] = []
    for item in module.modules():
        own = [
            (name, value) for name, value in vars(item).items() if name not in ("_parameters", "_buffers", "_modules")
        ]
        for name, value in [*own, *item._buffers.items()]:
            if any(isinstance(part, torch.Tensor) and part.grad_fn is not None for part in _parts(value)):
                found.append((item, name))
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return list(value.values()) if isinstance(value, dict) else [value]


def _assignment(carried: list[tuple[torch.nn.Module, str]], source_root: Path) -> Place | None:
    """Where forward (or a method) last sets the attribute; not the constructor."""
    for module, name in carried:
        for method in vars(type(module)).values():
            if inspect.isfunction(method) and method.__name__ != "__init__":
                place = _sets(method, name, source_root)
                if place is not None:
                    return place
    return None


def _sets(method: Any, name: str, source_root: Path) -> Place | None:
    try:
        lines, start = inspect.getsourcelines(method)
        path = relative(inspect.getsourcefile(method) or "", source_root)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    places = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
    ]
    return Place(path, start - 1 + max(places)) if path is not None and places else None
