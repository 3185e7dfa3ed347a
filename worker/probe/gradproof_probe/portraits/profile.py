"""What each module and each operation costs: time of a forward and a backward, and the bytes kept in between.

This module must not run anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from gradproof_probe.portraits.graph import Graph, Operation
from gradproof_probe.portraits.recording import ModuleCall, Recording
from gradproof_probe.portraits.timing import Timing

MOST_MODULES: Final = 10
MOST_OPERATIONS: Final = 10
_LONGEST: Final = 80


@dataclass(slots=True)
class _Module:
    """The calls of one module together; `own` is without the modules inside of it."""

    name: str
    kind: str
    calls: int = 0
    forward: float = 0.0
    own_forward: float = 0.0
    backward: float = 0.0
    own_backward: float = 0.0
    saved: int = 0
    own_saved: int = 0

    def to_evidence(self) -> dict[str, Any]:
        return {
            "name": _end(self.name),
            "class": _end(self.kind),
            "calls": self.calls,
            "forward_ms": milliseconds(self.forward),
            "own_forward_ms": milliseconds(self.own_forward),
            "backward_ms": milliseconds(self.backward),
            "own_backward_ms": milliseconds(self.own_backward),
            "saved_bytes": self.saved,
            "own_saved_bytes": self.own_saved,
        }


def profile(graph: Graph, recording: Recording, timing: Timing) -> dict[str, Any]:
    """The ten modules and the ten lines with the most, and the sums of all."""
    modules = _modules(recording.calls, graph.operations, timing)
    costliest = sorted(modules, key=lambda module: -(module.own_forward + module.own_backward))
    return {
        "forward_ms": milliseconds(timing.forward),
        "backward_ms": milliseconds(timing.backward),
        "saved_bytes": sum(operation.saved for operation in graph.operations),
        "modules": [module.to_evidence() for module in costliest[:MOST_MODULES]],
        "modules_in_all": len(modules),
        "operations": _operations(graph.operations, seconds_by_operation(graph.operations, timing)),
    }


def seconds_by_operation(operations: Sequence[Operation], timing: Timing) -> list[float] | None:
    """Backward seconds of each operation; None if the call that was timed made another graph."""
    return [seconds for _, seconds in timing.nodes] if len(timing.nodes) == len(operations) else None


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 4)


def _modules(calls: Sequence[ModuleCall], operations: Sequence[Operation], timing: Timing) -> list[_Module]:
    found: dict[str, _Module] = {}
    backward = _totals([number for number, _ in timing.nodes], [seconds for _, seconds in timing.nodes], timing.calls)
    for index, call in enumerate(timing.calls):
        module = found.setdefault(call.name, _Module(call.name, call.kind))
        module.calls += 1
        module.forward += call.seconds
        module.own_forward += call.seconds
        module.backward += backward[index]
        module.own_backward += backward[index]
        if call.parent is not None:
            outer = found[timing.calls[call.parent].name]
            outer.own_forward -= call.seconds
            outer.own_backward -= backward[index]
    saved = _totals([item.number for item in operations], [item.saved for item in operations], calls)
    for index, call in enumerate(calls):
        module = found.setdefault(call.name, _Module(call.name, call.kind))
        module.saved += int(saved[index])
        module.own_saved += int(saved[index])
        if call.parent is not None:
            found[calls[call.parent].name].own_saved -= int(saved[index])
    return list(found.values())


def _totals(numbers: Sequence[int], values: Sequence[float], calls: Sequence[ModuleCall]) -> list[float]:
    """For each call the sum of the values of its nodes, inner modules included."""
    sums = [0.0, *accumulate(values)]
    return [sums[bisect_left(numbers, call.last)] - sums[bisect_left(numbers, call.first)] for call in calls]


def _operations(operations: Sequence[Operation], seconds: Sequence[float] | None) -> list[dict[str, Any]]:
    """By name and line, those that keep most; all that keep nothing have nothing to tell."""
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    for index, operation in enumerate(operations):
        place = operation.place
        item = found.setdefault(
            (operation.name, place),
            {
                "name": _end(operation.name),
                "path": None if place is None else place.path,
                "line": None if place is None else place.line,
                "count": 0,
                "saved_bytes": 0,
                "backward_ms": None if seconds is None else 0.0,
            },
        )
        item["count"] += 1
        item["saved_bytes"] += operation.saved
        if seconds is not None:
            item["backward_ms"] += milliseconds(seconds[index])
    most = sorted(found.values(), key=lambda item: (-item["saved_bytes"], -(item["backward_ms"] or 0.0)))
    for item in most[:MOST_OPERATIONS]:
        if item["backward_ms"] is not None:
            item["backward_ms"] = round(item["backward_ms"], 4)
    return [item for item in most[:MOST_OPERATIONS] if item["saved_bytes"]]


def _end(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
