"""A graph of any size as at most a given number of boxes: whole if it is small, else along the boundaries of modules.

A box is a stretch of operations in the order of their making: those of one call of a module, of one line, or one alone.
Stretches that don't overlap can't close a circle, so a collapsed graph stays one without cycles. This module must not
know torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gradproof_probe.portraits.graph import Operation
from gradproof_probe.portraits.recording import ModuleCall

# Where not even the parts of one box fit in: neighbours are drawn as one, in so many boxes, if there is room for some.
MOST_STRETCHES: Final = 48
FEWEST_STRETCHES: Final = 3

Kind = Literal["operation", "lines", "module", "several"]


@dataclass(slots=True)
class Part:
    """Operations from `start` up to, not including, `stop`; `calls` are those of the modules that it stands for."""

    kind: Kind
    start: int
    stop: int
    calls: tuple[int, ...] = ()
    parts: list[Part] = field(default_factory=list)
    depth: int = 0

    @property
    def size(self) -> int:
        return self.stop - self.start


def collapse(operations: Sequence[Operation], calls: Sequence[ModuleCall], room: int) -> list[Part]:
    """The boxes in the order of their operations: at most `room`, and no box that could be opened within it."""
    shown = [_tree(operations, calls)] if operations else []
    closed: set[int] = set()
    while True:
        candidates = [part for part in shown if part.parts and id(part) not in closed]
        if not candidates:
            return shown
        # The outermost first, of these the largest; alike ones together, so that a picture is even.
        model = min(candidates, key=lambda part: (part.depth, -part.size))
        alike = [part for part in candidates if _likeness(part, calls) == _likeness(model, calls)]
        left = room - len(shown)
        if sum(len(part.parts) - 1 for part in alike) <= left:
            shown = _opened(shown, alike)
        elif len(model.parts) - 1 <= left:
            shown = _opened(shown, [model])  # one shows what the others are like
            closed.update(id(part) for part in alike)
        elif len(alike) == 1 and left + 1 >= FEWEST_STRETCHES:
            model.parts = _stretches(model.parts, min(left + 1, MOST_STRETCHES))
            shown = _opened(shown, [model])
        else:
            closed.update(id(part) for part in alike)


def innermost_calls(operations: Sequence[Operation], calls: Sequence[ModuleCall]) -> list[int]:
    """For each operation the index of the innermost call of a module that it was made in."""
    found = [0] * len(operations)
    for index, (start, stop) in enumerate(_ranges(operations, calls)):
        found[start:stop] = [index] * (stop - start)  # an inner call begins later, and has the last word
    return found


def _tree(operations: Sequence[Operation], calls: Sequence[ModuleCall]) -> Part:
    ranges = _ranges(operations, calls)
    inner: dict[int, list[Part]] = {}
    for index in range(len(calls) - 1, -1, -1):
        start, stop = ranges[index] if index else (0, len(operations))
        if start == stop:
            continue
        parts: list[Part] = []
        position = start
        for part in reversed(inner.pop(index, [])):
            parts += _lines(operations, position, part.start)
            parts.append(part)
            position = part.stop
        parts += _lines(operations, position, stop)
        whole = Part("module", start, stop, (index,), parts)
        parent = calls[index].parent
        if parent is None:
            return whole
        inner.setdefault(parent, []).append(whole)
    return Part("module", 0, len(operations), (0,), _lines(operations, 0, len(operations)))


def _ranges(operations: Sequence[Operation], calls: Sequence[ModuleCall]) -> list[tuple[int, int]]:
    numbers = [operation.number for operation in operations]
    return [(bisect_left(numbers, call.first), bisect_left(numbers, call.last)) for call in calls]


def _lines(operations: Sequence[Operation], start: int, stop: int) -> list[Part]:
    """Operations that follow each other and come from one line are one part."""
    found: list[Part] = []
    for position in range(start, stop):
        single = Part("operation", position, position + 1)
        if found and operations[position].place == operations[position - 1].place:
            last = found[-1]
            if last.kind == "operation":
                found[-1] = last = Part("lines", last.start, last.stop, parts=[last])
            last.parts.append(single)
            last.stop = position + 1
        else:
            found.append(single)
    return found


def _likeness(part: Part, calls: Sequence[ModuleCall]) -> tuple[object, ...]:
    return part.depth, part.kind, part.size, tuple(calls[index].kind for index in part.calls)


def _opened(shown: Sequence[Part], opened: Sequence[Part]) -> list[Part]:
    chosen = {id(part) for part in opened}
    found: list[Part] = []
    for part in shown:
        if id(part) in chosen:
            for inner in part.parts:
                inner.depth = part.depth + 1
            found += part.parts
        else:
            found.append(part)
    return found


def _stretches(parts: Sequence[Part], number: int) -> list[Part]:
    """Neighbours together, about equally many, in at most this number of boxes that stay closed."""
    found: list[Part] = []
    for position in range(number):
        some = parts[position * len(parts) // number : (position + 1) * len(parts) // number]
        if len(some) == 1:
            found.append(some[0])
        elif some:
            called = tuple(index for part in some for index in part.calls)
            found.append(Part("several", some[0].start, some[-1].stop, called))
    return found
