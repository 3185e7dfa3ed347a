"""The first submitted line whose values differ between plain execution and what Dynamo captured of it.

Values are compared line by line, not one by one: what Dynamo leaves out or folds changes how many operations a line
has. Gradients are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.compiling.graphs import GraphCall, line_of
from gradproof_probe.equivalence.observation import ROUNDING, relative_error
from gradproof_probe.gradients.attribution import Place, calling_line
from gradproof_probe.trees import tensors

_MOST_VALUES: Final = 4000
_MOST_NUMBERS: Final = 1 << 18  # a larger tensor is not kept


class LineValues(torch.overrides.TorchFunctionMode):
    """Keeps what every operation gives, by the submitted line that it is called from."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self.values: dict[Place, list[torch.Tensor]] = {}
        self._root = source_root
        self._kept = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for _, value in tensors(result):
            if self._kept < _MOST_VALUES and _is_comparable(value) and (place := calling_line(self._root)) is not None:
                self._kept += 1
                self.values.setdefault(place, []).append(value.detach().clone())
        return result


def first_differing_line(
    calls: list[GraphCall], plain: dict[Place, list[torch.Tensor]], source_root: Path
) -> tuple[Place, torch.fx.Node] | None:
    """The line, and the operation of the graph that gives a value which plain execution never had on that line."""
    for call in calls:
        found: list[tuple[Place, torch.fx.Node]] = []

        def look(node: torch.fx.Node, value: Any, found: list[tuple[Place, torch.fx.Node]] = found) -> None:
            place = line_of(node, source_root)
            if found or place is None or place not in plain:
                return
            if any(_is_comparable(item) and not _is_among(item, plain[place]) for _, item in tensors(value)):
                found.append((place, node))

        arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in call.arguments]
        torch.random.set_rng_state(call.generator)
        with torch.set_grad_enabled(call.with_gradients):
            _Watched(call.graph, look).run(*arguments)
        if found:
            return found[0]
    return None


class _Watched(torch.fx.Interpreter):
    """Shows every value, as soon as there is one, to somebody."""

    def __init__(self, graph: torch.fx.GraphModule, look: Callable[[torch.fx.Node, Any], None]) -> None:
        super().__init__(graph)
        self._look = look

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op.startswith("call"):
            self._look(n, value)
        return value


def _is_comparable(value: torch.Tensor) -> bool:
    """Not under a transform of torch.func, whose values have no storage of their own."""
    return (
        value.layout == torch.strided
        and value.numel() <= _MOST_NUMBERS
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _is_among(value: torch.Tensor, known: list[torch.Tensor]) -> bool:
    return any(
        item.shape == value.shape and item.dtype == value.dtype and relative_error(value, item, 0.0) <= ROUNDING
        for item in known
    )
