"""What stays alive after a call, with the collector off: tensors, what graphs saved for backward, and nodes of graphs.

Counted after equal calls, each with a backward and everything dropped that was returned. What grows from call to call
is held by somebody: an attribute of the module, a name of the submitted source, or a custom Function's ctx that holds
its own output. This module must not judge whether that is meant.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, calling_line, relative
from gradproof_probe.gradients.experiment import Experiment, differentiable
from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.gradients.probing import random_like
from gradproof_probe.trees import tensors

_REGISTRIES: Final = ("_parameters", "_modules")
_MOST_NODES: Final = 50_000
_MOST_ROOTS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Census:
    """`tensors` in Python, `graphs`: those of them with a graph, `nodes` behind these, `saved` for backward."""

    tensors: int
    graphs: int
    saved: int
    nodes: int
    bytes: int

    def grown(self, earlier: Census, calls: int) -> dict[str, float]:
        """By how much per call."""
        names = ("tensors", "graphs", "saved", "nodes", "bytes")
        return {name: (getattr(self, name) - getattr(earlier, name)) / calls for name in names}


@dataclass(frozen=True, slots=True)
class SavedBy:
    """What one line made autograd save."""

    operation: str
    place: Place | None
    tensors: int
    bytes: int


class _Held:
    """A saved tensor; it lives as long as the graph that saved it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Saved(torch.overrides.TorchFunctionMode):
    """Everything that is saved for backward while it is open; `by_operation` for the calls that it is entered for."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self._alive: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._operations: list[str] = []
        self._records: dict[tuple[str, Place | None], dict[int, int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operations.append(str(getattr(func, "__name__", func)))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operations.pop()

    def hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def alive(self) -> list[torch.Tensor]:
        return [held.tensor for held in list(self._alive)]

    def by_operation(self, *, aside: set[int]) -> list[SavedBy]:
        """The largest first. `aside`: addresses of memory that would be there anyway, such as parameters."""
        found = []
        for (operation, place), sizes in self._records.items():
            own = {address: size for address, size in sizes.items() if address not in aside}
            if own:
                found.append(SavedBy(operation, place, len(own), sum(own.values())))
        return sorted(found, key=lambda item: -item.bytes)

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor.detach())  # itself, it could be an output, and hold the very graph that saved it
        self._alive.add(held)
        if self._operations:
            key = (self._operations[-1], calling_line(self._root))
            storage = _storage(tensor)
            if storage is not None:
                self._records.setdefault(key, {})[storage[0]] = storage[1]
        return held


@contextmanager
def collector_off() -> Iterator[None]:
    """What only the collector would free stays, and is counted; what was there before is not looked at."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:  # a forked child keeps what it was forked with
            gc.unfreeze()
        if enabled:
            gc.enable()


def step(experiment: Experiment, saved: Saved | None, *, backward: bool = True) -> bool:
    """One call on the state that the last one left: whether it made a graph. Raises `ForwardError`, `BackwardError`."""
    if saved is None:
        outputs = differentiable(experiment.run(restore=False))
    else:
        with saved.hooks():
            outputs = differentiable(experiment.run(restore=False))
    if backward and outputs:
        generator = torch.Generator().manual_seed(experiment.seed + 17)
        experiment.gradients(outputs, [random_like(item.value, generator) for item in outputs])
    return bool(outputs)


def census(saved: Saved | None) -> Census:
    alive = live_tensors()
    kept = saved.alive() if saved is not None else []
    graphs = [tensor for tensor in alive if tensor.grad_fn is not None]
    memory = dict(item for item in (_storage(tensor) for tensor in [*alive, *kept]) if item is not None)
    return Census(len(alive), len(graphs), len(kept), count_behind(graphs), sum(memory.values()))


def live_tensors() -> list[torch.Tensor]:
    """Those that were made since the collector is off."""
    return [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]


def count_behind(graphs: list[torch.Tensor]) -> int:
    return sum(1 for _ in nodes_behind(graphs, _MOST_NODES))


@dataclass(frozen=True, slots=True)
class Root:
    """A name under which something is kept: an attribute of a module or a class, or a name of a source file.

    `limit`: how many elements it can hold, if it is bounded.
    """

    label: str
    name: str
    owner: type | types.ModuleType
    is_attribute: bool
    limit: int | None = None


def holdings(module: torch.nn.Module | None, source_root: Path) -> dict[Root, tuple[int, int, int]]:
    """By name: (tensors, those with a graph, nodes behind these)."""
    found: dict[Root, tuple[int, int, int]] = {}
    for root, value in _roots(module, source_root):
        if isinstance(value, collections.deque):
            root = replace(root, limit=value.maxlen)  # noqa: PLW2901
        held = [tensor for _, tensor in tensors(_listed(value))]
        graphs = [tensor for tensor in held if tensor.grad_fn is not None]
        if held:
            found[root] = (len(held), len(graphs), count_behind(graphs))
    return found


@dataclass(frozen=True, slots=True)
class Cycle:
    """A custom Function whose ctx holds its own output under this name."""

    function: type
    attribute: str
    count: int


def cycles() -> Cycle | None:
    """The first Function whose ctx and output hold each other, among the tensors that are alive."""
    found: dict[tuple[type, str], int] = {}
    for tensor in live_tensors():
        node = tensor.grad_fn
        function = getattr(type(node), "_forward_cls", None)
        if function is None:
            continue
        for name, value in getattr(node, "__dict__", {}).items():
            if any(item is tensor for _, item in tensors(_listed(value))):
                found[function, name] = found.get((function, name), 0) + 1
    for (function, name), count in found.items():
        return Cycle(function, name, count)
    return None


def _roots(module: torch.nn.Module | None, source_root: Path) -> Iterator[tuple[Root, Any]]:
    count = 0
    for prefix, item in module.named_modules() if module is not None else ():
        own = {**vars(item), **item._buffers}
        for name, value in own.items():
            if name not in _REGISTRIES and name != "_buffers":
                label = f"self.{prefix}{'.' if prefix else ''}{name}"
                yield Root(label, name, type(item), is_attribute=True), value
    for source in list(sys.modules.values()):
        filename = getattr(source, "__file__", None)
        if not isinstance(filename, str) or relative(filename, source_root) is None:
            continue
        for name, value in list(vars(source).items()):
            count += 1
            if count > _MOST_ROOTS:
                return
            if isinstance(value, list | dict | set | collections.deque | torch.Tensor) and not name.startswith("__"):
                yield Root(name, name, source, is_attribute=False), value
            elif isinstance(value, type) and value.__module__ == source.__name__:
                for attribute, kept in list(vars(value).items()):
                    if isinstance(kept, list | dict | set | collections.deque | torch.Tensor):
                        yield Root(f"{name}.{attribute}", attribute, value, is_attribute=True), kept
            elif isinstance(value, types.FunctionType) and value.__module__ == source.__name__:
                for kept in value.__defaults__ or ():
                    if isinstance(kept, list | dict | set):
                        yield Root(f"a default of {name}()", name, source, is_attribute=False), kept


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, set | frozenset | collections.deque) else value


def _storage(tensor: torch.Tensor) -> tuple[int, int] | None:
    """(address, bytes) of its memory; None where it has none of its own."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return None
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # subclasses that wrap others have no storage
        return None
