"""The plan of a picture: boxes and what each reads, as plain values. Nothing is placed yet; that needs no torch.

A box reads only boxes before it, so that whoever draws it can rely on there being no cycle. This module must not run
anything, and keeps what it makes within the size that evidence may have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradproof_probe.gradients.attribution import relative
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.portraits.collapsing import Part, collapse, innermost_calls
from gradproof_probe.portraits.graph import Graph, Operation, function_lines
from gradproof_probe.portraits.profile import milliseconds, seconds_by_operation
from gradproof_probe.portraits.recording import ModuleCall
from gradproof_probe.portraits.timing import Timing

MOST_BOXES: Final = 100
_MOST_ENDS: Final = 12  # inputs, outputs; more are one box
_MOST_APART: Final = 8  # boxes for parameters of modules that have no box
_MOST_EDGES: Final = 600
_MOST_NAMES: Final = 12
_LONGEST: Final = 80
# Evidence is left out whole if it has more than 64 kB as JSON; the profile takes 6 kB of it at most.
_BYTES: Final = 48_000
# Stretches of lines that a box keeps, from what is good to what is needed for the place alone.
_FEWER_LINES: Final = (24, 8, 2, 1)

Box = dict[str, Any]


def plan(
    graph: Graph,
    calls: Sequence[ModuleCall],
    timing: Timing,
    lost: Mapping[str, str],
    experiment: Experiment,
    source_root: Path,
) -> dict[str, Any]:
    """`lost`: parameters without gradient, each with how it is: `none` or `zero`."""
    apart = _owners(lost)
    inputs = _ends("input", graph.inputs, _shapes(experiment))
    outputs = _ends("output", [output.name for output in graph.outputs], {})
    room = MOST_BOXES - len(inputs) - len(outputs) - min(len(apart), _MOST_APART)
    parts = collapse(graph.operations, calls, room)
    drawer = _Boxes(graph.operations, calls, timing, source_root)
    boxes = [*inputs, *(drawer.box(part) for part in parts), *outputs]
    left_out = _connect(boxes, graph, parts, len(inputs))
    closed = {
        calls[part.calls[0]].name: boxes[position]
        for position, part in enumerate(parts, start=len(inputs))
        if part.kind == "module"
    }
    boxes += _mark(closed, apart, lost, calls[0].kind)
    whole = all(part.kind == "operation" for part in parts)
    return _fitted(boxes, drawer.files, {"operations": len(graph.operations), "whole": whole, "edges_left": left_out})


class _Boxes:
    """Describes parts. `files` is filled on the way: boxes name them by their number."""

    def __init__(
        self, operations: Sequence[Operation], calls: Sequence[ModuleCall], timing: Timing, source_root: Path
    ) -> None:
        self.files: list[str] = []
        self._operations = operations
        self._calls = calls
        self._innermost = innermost_calls(operations, calls)
        self._root = source_root
        self._backward = seconds_by_operation(operations, timing)
        same = [call.name for call in calls] == [call.name for call in timing.calls]
        self._forward = [call.seconds for call in timing.calls] if same else None
        self._times_called = Counter(call.name for call in calls)
        self._turn: dict[int, int] = {}
        seen: Counter[str] = Counter()
        for index, call in enumerate(calls):
            seen[call.name] += 1
            self._turn[index] = seen[call.name]

    def box(self, part: Part) -> Box:
        operations = self._operations[part.start : part.stop]
        found: Box = {"kind": part.kind, "label": self._label(part, operations), "from": []}
        about = self._about(part)
        if about:
            found["about"] = about
        if part.size > 1:
            found["operations"] = part.size
        shape = operations[-1].shape
        if shape is not None:
            found["shape"] = list(shape)[:8]
        saved = sum(operation.saved for operation in operations)
        if saved:
            found["saved_bytes"] = saved
        if part.kind == "module" and self._forward is not None:
            found["forward_ms"] = milliseconds(self._forward[part.calls[0]])
        if self._backward is not None:
            found["backward_ms"] = milliseconds(sum(self._backward[part.start : part.stop]))
        found["lines"] = self._lines(operations)
        return found

    def _label(self, part: Part, operations: Sequence[Operation]) -> str:
        if part.kind == "module":
            return self._called(part.calls[0])
        if part.calls:
            return short(f"{self._called(part.calls[0])} … {self._called(part.calls[-1])}")
        names = list(dict.fromkeys(operation.name for operation in operations))
        return short(", ".join([*names[:4], *(["…"] if len(names) > 4 else [])]))

    def _about(self, part: Part) -> str:
        if part.kind == "module":
            kind = self._calls[part.calls[0]].kind
            return "" if kind == self._calls[part.calls[0]].name else short(kind)
        inner = self._innermost[part.start]
        return short(self._called(inner)) if part.kind != "several" and inner else ""

    def _called(self, index: int) -> str:
        call = self._calls[index]
        turn = f" (call {self._turn[index]})" if self._times_called[call.name] > 1 else ""
        return short(call.name or call.kind) + turn

    def _lines(self, operations: Iterable[Operation]) -> list[list[int]]:
        """[number of a file, first, last line], drawn together where they touch."""
        stretches: set[tuple[str, int, int]] = set()
        for operation in operations:
            if operation.place is not None:
                stretches.add((operation.place.path, operation.place.line, operation.place.line))
            for filename, first, last in function_lines(operation):
                path = relative(filename, self._root)
                if path is not None:
                    stretches.add((path, first, last))
        found: list[list[int]] = []
        for path, first, last in sorted(stretches):
            number = self._file(path)
            if found and found[-1][0] == number and first <= found[-1][2] + 1:
                found[-1][2] = max(found[-1][2], last)
            else:
                found.append([number, first, last])
        return found

    def _file(self, path: str) -> int:
        if path not in self.files:
            self.files.append(path)
        return self.files.index(path)


def short(text: str, limit: int = _LONGEST) -> str:
    """Cut in the middle: names of modules differ at their ends."""
    return text if len(text) <= limit else f"{text[: limit // 3]}…{text[-(limit - limit // 3 - 1) :]}"


def _shapes(experiment: Experiment) -> dict[str, list[int]]:
    return {item.name: list(item.leaf.shape)[:8] for item in experiment.variables if item.kind == "input"}


def _ends(kind: str, names: Sequence[str], shapes: Mapping[str, list[int]]) -> list[Box]:
    if len(names) > _MOST_ENDS:
        return [{"kind": kind, "label": f"{len(names)} {kind}s", "from": [], "lines": []}]
    return [
        {"kind": kind, "label": short(name), "from": [], "lines": []}
        | ({"shape": shapes[name]} if shapes.get(name) is not None else {})
        for name in names
    ]


def _connect(boxes: Sequence[Box], graph: Graph, parts: Sequence[Part], inputs: int) -> int:
    """Fill in what each box reads; the number of edges for which there was no room."""
    given = {name: min(index, inputs - 1) for index, name in enumerate(graph.inputs)}
    box_of = [0] * len(graph.operations)
    for position, part in enumerate(parts, start=inputs):
        box_of[part.start : part.stop] = [position] * part.size
    sources: list[dict[int, None]] = [{} for _ in boxes]
    for operation, reader in zip(graph.operations, box_of, strict=True):
        for name in operation.inputs:
            sources[reader][given[name]] = None
        for earlier in operation.reads:
            sources[reader][box_of[earlier]] = None
    first, last = inputs + len(parts), len(boxes) - 1
    for index, output in enumerate(graph.outputs):
        end = min(first + index, last)
        if output.made_by is not None:
            sources[end][box_of[output.made_by]] = None
        elif output.given is not None:
            sources[end][given[output.given]] = None
    edges = [(box, source) for box, read in enumerate(sources) for source in read if source < box]
    edges.sort(key=lambda edge: edge[0] - edge[1])  # the nearest tell the way, should there be too many
    for box, source in sorted(edges[:_MOST_EDGES]):
        boxes[box]["from"].append(source)
    return max(len(edges) - _MOST_EDGES, 0)


def _owners(lost: Mapping[str, str]) -> dict[str, list[str]]:
    """The parameters by the name of the module that has them."""
    found: dict[str, list[str]] = {}
    for name in lost:
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


def _mark(closed: Mapping[str, Box], apart: Mapping[str, list[str]], lost: Mapping[str, str], title: str) -> list[Box]:
    """Mark the boxes of the modules that have the parameters, `closed` by name; what is in none has boxes of its own,
    which are returned."""
    alone: list[tuple[str, list[str]]] = []
    for owner, names in apart.items():
        around = [name for name in closed if name in ("", owner) or owner.startswith(f"{name}.")]
        if around:
            _note_lost(closed[max(around, key=len)], names, lost)
        else:
            alone.append((owner or title, names))
    if len(alone) > _MOST_APART:
        rest = alone[_MOST_APART - 1 :]
        alone[_MOST_APART - 1 :] = [(f"{len(rest)} modules", [name for _, names in rest for name in names])]
    made: list[Box] = []
    for owner, names in alone:
        box: Box = {"kind": "parameters", "label": short(owner), "from": [], "lines": []}
        _note_lost(box, names, lost)
        made.append(box)
    return made


def _note_lost(box: Box, names: Sequence[str], lost: Mapping[str, str]) -> None:
    for fate in ("none", "zero"):
        some = [short(name) for name in names if lost[name] == fate]
        if some:
            marks = box.setdefault("lost", {})
            marks[fate] = [*marks.get(fate, []), *some][:_MOST_NAMES]


def _fitted(boxes: list[Box], files: list[str], rest: dict[str, Any]) -> dict[str, Any]:
    """With as many lines as fit in: one file can have a hundred stretches, and a name in Chinese six bytes a letter."""
    for most in _FEWER_LINES:
        for box in boxes:
            box["lines"] = box["lines"][:most]
        made = {"nodes": boxes, "files": files, **rest}
        if len(json.dumps(made)) <= _BYTES:
            return made
    for box in boxes:
        box["label"] = short(box["label"], 24)
        box["about"] = short(box.get("about", ""), 24)
        box.pop("lost", None)
        box["lines"] = []
    return {"nodes": boxes, "files": [], **rest}
