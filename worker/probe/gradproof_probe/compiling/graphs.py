"""Graphs that Dynamo captured, run again: whole, or with a part of them compiled and the rest interpreted.

The first operation whose compilation changes anything is found by bisection, without tracing Python again. The
comparison takes in the backward of everything, because what is compiled and what is interpreted are joined by autograd.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.compiling.running import Backend
from gradproof_probe.equivalence.observation import Observation, note_gradients
from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.trees import tensors

_MOST_CALLS: Final = 16  # graphs times calls that are kept; a model that is broken more often is located no further
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_PART: Final = re.compile(r"(?:^L\['self'\]\.?)|(?:_modules\['([^']*)'\])")
# They hand on what they are given, in another shape.
_HANDING_ON: Final = frozenset(
    {
        *("getitem", "view", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "squeeze", "unsqueeze"),
        *("expand", "contiguous", "chunk", "split", "unbind", "movedim", "swapaxes"),
    }
)


class _OutOfTimeError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One call of one graph, with what it was given before anything was written to it."""

    graph: torch.fx.GraphModule
    arguments: tuple[Any, ...]
    with_gradients: bool
    generator: torch.Tensor


@dataclass(slots=True)
class GraphRecorder:
    """A backend that interprets what it is given, and keeps every call."""

    calls: list[GraphCall] = field(default_factory=list)

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any, **_options: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if len(self.calls) < _MOST_CALLS:
                kept = tuple(_alike(args, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)))
                generator = torch.random.get_rng_state()
                self.calls.append(GraphCall(graph, kept, torch.is_grad_enabled(), generator))
            return graph(*args)

        return run


def replay(call: GraphCall, run: Callable[..., Any], *, seed: int) -> Observation:
    """Run the graph's call again as `run` does it: outputs, gradients of all inputs, and inputs afterwards."""
    wanted: list[tuple[str, torch.Tensor]] = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach().clone()
        if not tensor.requires_grad:
            return value
        wanted.append((f"input{len(wanted)}", value.requires_grad_()))
        return value.clone()  # a graph may write to it, which nobody may do to a leaf

    with torch.set_grad_enabled(call.with_gradients):
        args = _alike(call.arguments, leaf)
        torch.random.set_rng_state(call.generator)
        outputs = tensors(run(*args))
    seen = Observation()
    for path, value in outputs:
        seen.values[f"output{path}"] = value.detach().clone()
    note_gradients(seen, "", [value for _, value in outputs], wanted, seed)
    for path, value in tensors(list(args)):
        seen.values[f"input{path} after"] = value.detach().clone()
    return seen


def compiled_between(graph: torch.fx.GraphModule, backend: Backend, begin: int, end: int) -> Callable[..., Any]:
    """The nodes from number `begin` up to `end` as one graph of its own, compiled; the others interpreted."""
    before, rest = _parted(graph, begin)
    behind = len(list(graph.graph.nodes)) - end
    part, after = _parted(rest, len(list(rest.graph.nodes)) - behind)

    def run(*args: Any) -> Any:
        given = (*before(*args), *args)
        part_run = backend(part, list(given))
        return after(*part_run(*given), *given)

    return run


def first_differing(
    call: GraphCall,
    backend: Backend,
    differs: Callable[[Observation], bool],
    *,
    seed: int,
    more: Callable[[], bool],
    several: bool = True,
) -> torch.fx.Node | None:
    """The operation whose compilation gives something else, or of those that do so together the last that computes.

    Halves are compiled alone as long as one of them is wrong alone: all compilations together are of the graph once or
    twice. Of `several` graphs each is compiled as a whole first, since most are right. None if the whole graph,
    compiled by itself, gives the same, or time runs out.
    """
    nodes = list(call.graph.graph.nodes)
    start = next((number for number, node in enumerate(nodes) if node.op.startswith("call")), 0)
    bounds = [start, *_cuts(nodes)]

    def wrong(begin: int, end: int) -> bool:
        if not more():
            raise _OutOfTimeError
        try:
            return differs(replay(call, compiled_between(call.graph, backend, bounds[begin], bounds[end]), seed=seed))
        except Exception:
            return False  # a part that can't be compiled by itself says nothing: look beside it

    begin, end = 0, len(bounds) - 1
    try:
        known = several or end == 1
        if end == 0 or (known and not wrong(begin, end)):
            return None
        while end - begin > 1:
            middle = (begin + end) // 2
            if wrong(begin, middle):
                end = middle
            elif wrong(middle, end):
                begin = middle
            elif not known and not wrong(begin, end):
                return None
            else:
                begin, end = _together(wrong, begin, middle, end)
            known = True
    except _OutOfTimeError:
        return None
    last = [node for node in reversed(nodes[bounds[begin] : bounds[end]]) if node.op.startswith("call")]
    return next((node for node in last if operation(node) not in _HANDING_ON), last[0] if last else None)


def _together(wrong: Callable[[int, int], bool], begin: int, middle: int, end: int) -> tuple[int, int]:
    """Neither half is wrong alone: around the end that has to be there for the fault."""
    right, bad = middle, end
    while bad - right > 1:
        between = (right + bad) // 2
        if wrong(begin, between):
            bad = between
        else:
            right = between
    return right, bad


def operation(node: torch.fx.Node) -> str:
    """`gelu`, `mul_`, `torch.nn.functional.linear` …: the last word."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.rpartition(".")[2]


def line_of(node: torch.fx.Node, source_root: Path) -> Place | None:
    """The innermost submitted line of the Python code that a node was captured from."""
    own = [
        Place(path, int(line))
        for name, line in _FRAME.findall(str(node.meta.get("stack_trace", "")))
        if (path := relative(name, source_root)) is not None
    ]
    return own[-1] if own else None


def part_of(node: torch.fx.Node) -> str | None:
    """The submodule that a node belongs to: `blocks.0.norm (LayerNorm)`; None for the target's own forward."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    name = _PART.sub(lambda found: found[1] or "", str(path)).strip(".")
    return f"{name} ({getattr(kind, '__name__', kind)})" if name else None


def _parted(graph: torch.fx.GraphModule, count: int) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The first `count` nodes, giving what the others use, and the others, which take that and the graph's inputs."""
    nodes = list(graph.graph.nodes)
    first, later = nodes[:count], nodes[count:]
    crossing = _crossing(first, set(later))
    head, tail = torch.fx.Graph(), torch.fx.Graph()
    in_head: dict[torch.fx.Node, torch.fx.Node] = {}
    in_tail = {node: tail.placeholder(f"given_{number}") for number, node in enumerate(crossing)}
    for node in first:
        in_head[node] = _copied(head, node, in_head)
        if node.op in ("placeholder", "get_attr"):
            in_tail[node] = _copied(tail, node, in_tail)
    head.output(tuple(in_head[node] for node in crossing))
    for node in later:
        in_tail[node] = _copied(tail, node, in_tail)
    return torch.fx.GraphModule(graph, head), torch.fx.GraphModule(graph, tail)


def _copied(graph: torch.fx.Graph, node: torch.fx.Node, known: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    copy = graph.node_copy(node, lambda argument: known[argument])
    # What Dynamo noted of values belongs to its own tracing, which is over.
    copy.meta = {key: copy.meta[key] for key in ("stack_trace", "nn_module_stack") if key in copy.meta}
    return copy


def _crossing(first: Sequence[torch.fx.Node], later: set[torch.fx.Node]) -> list[torch.fx.Node]:
    return [
        node
        for node in first
        if node.op not in ("placeholder", "get_attr") and any(user in later for user in node.users)
    ]


def _cuts(nodes: Sequence[torch.fx.Node]) -> list[int]:
    """Where a graph may be cut: only tensors go across, and no context is open there."""
    found: list[int] = []
    later = set(nodes)
    depth, disabled = 0, False
    for count, node in enumerate(nodes, start=1):
        later.discard(node)
        if node.op == "output":
            break
        name = operation(node)
        depth += _opens(name)
        if name in ("_set_grad_enabled", "set_grad_enabled"):
            disabled = node.args[0] is False
        if not node.op.startswith("call") or depth > 0 or disabled:
            continue
        across = _crossing(nodes[:count], later)
        if across and all(isinstance(item.meta.get("example_value"), torch.Tensor) for item in across):
            found.append(count)
    return found


def _opens(name: str) -> int:
    if "increment_nesting" in name or name.startswith(("enter", "_enter", "push", "_push")):
        return 1
    return -1 if "decrement_nesting" in name or name.startswith(("exit", "_exit", "pop", "_pop")) else 0


def _alike(values: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """Every tensor changed, the same one twice into the same one."""
    known: dict[int, torch.Tensor] = {}

    def once(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            known[id(value)] = change(value)
        return known[id(value)]

    return [once(value) for value in values]
