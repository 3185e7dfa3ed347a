"""The graph of a recorded call as operations in the order of their making. This module must not run anything."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.portraits.recording import Recording
from gradproof_probe.trees import tensors

MOST_NODES: Final = 50_000  # walking them takes 0.3 s
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class TooLargeError(Exception):
    """More than `MOST_NODES` nodes."""


@dataclass(slots=True)
class Operation:
    """A node. `reads` are earlier operations, `inputs` and `parameters` what it reads beside them, by name."""

    number: int
    name: str
    function: type | None  # the custom Function, if it is one
    shape: tuple[int, ...] | None
    place: Place | None
    reads: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    saved: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """`made_by` is an operation; for what came in and goes out again unchanged, `given` is the name of the input."""

    name: str
    made_by: int | None
    given: str | None


@dataclass(slots=True)
class Graph:
    operations: list[Operation]
    outputs: list[Output]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs that something reads."""
        read = [name for operation in self.operations for name in operation.inputs]
        return list(dict.fromkeys([*read, *(output.given for output in self.outputs if output.given is not None)]))

    @property
    def parameters(self) -> set[str]:
        """The names of the parameters from which a path leads to an output."""
        return {name for operation in self.operations for name in operation.parameters}


def nodes_of(output: Any, inputs: dict[Any, str]) -> list[Any]:
    """The nodes behind an output, without leaves and those by which arguments came in, in the order of their making."""
    waiting = [value.grad_fn for _, value in tensors(output) if value.grad_fn is not None]
    found: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node in found or node in inputs or is_leaf(node):
            continue
        found[node] = None
        if len(found) > MOST_NODES:
            raise TooLargeError
        waiting += [following for following, _ in node.next_functions if following is not None]
    return sorted(found, key=lambda node: int(node._sequence_nr()))


def is_leaf(node: Any) -> bool:
    """Whether it takes in the gradient of a leaf. Its attributes don't tell: a custom Function may have any."""
    return type(node).__name__ == "AccumulateGrad"


def operation_name(node: Any) -> str:
    """`softmax` of `SoftmaxBackward0`; the name of the class of a custom Function."""
    own = getattr(type(node), "_forward_cls", None)
    if own is not None:
        return str(own.__name__)
    plain = re.sub(r"Backward\d*$", "", str(node.name()).rpartition("::")[2])
    return _WORDS.sub("_", plain).lower() or "node"


def read_graph(recording: Recording, experiment: Experiment) -> Graph:
    """Raises `TooLargeError`."""
    nodes = nodes_of(recording.output, recording.inputs)
    index = {node: position for position, node in enumerate(nodes)}
    leaves = {id(variable.leaf): variable.name for variable in experiment.variables}
    operations = [
        Operation(
            number=int(node._sequence_nr()),
            name=operation_name(node),
            function=getattr(type(node), "_forward_cls", None),
            shape=_shape(node),
            place=recording.places.get(int(node._sequence_nr())),
        )
        for node in nodes
    ]
    for position, node in enumerate(nodes):
        operation = operations[position]
        for source, _ in node.next_functions:
            if source in recording.inputs:
                _add(operation.inputs, recording.inputs[source])
            elif source in index:
                # A view that was written to gets a new node later: what goes backwards in time is no edge to draw.
                if index[source] < position:
                    _add(operation.reads, index[source])
            elif source is not None and is_leaf(source):
                _add(operation.parameters, leaves.get(id(source.variable), "a tensor"))
    _add_saved(operations, recording.saved)
    outputs = [
        Output(f"output{path}", index.get(value.grad_fn), recording.inputs.get(value.grad_fn))
        for path, value in tensors(recording.output)
        if value.grad_fn is not None
    ]
    return Graph(operations, outputs)


def function_lines(operation: Operation) -> Iterator[tuple[str, int, int]]:
    """(file as the interpreter knows it, first and last line) of the methods of a custom Function."""
    for name in ("forward", "backward", "setup_context") if operation.function is not None else ():
        code = getattr(getattr(operation.function, name, None), "__code__", None)
        if code is not None:
            lines = [line for _, _, line in code.co_lines() if line]
            if lines:
                yield str(code.co_filename), min(lines), max(lines)


def _add_saved(operations: list[Operation], saved: list[tuple[int, int]]) -> None:
    """A node that another one has swallowed (an in-place write to a view) isn't in the graph: the next one keeps it."""
    numbers = [operation.number for operation in operations]
    for number, size in saved:
        position = bisect_left(numbers, number)
        if position < len(operations):
            operations[position].saved += size


def _shape(node: Any) -> tuple[int, ...] | None:
    try:
        return tuple(int(size) for size in node._input_metadata[0].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # an output that nothing was made of, or sizes that are no numbers


def _add(names: list[Any], name: Any) -> None:
    if name not in names:
        names.append(name)
