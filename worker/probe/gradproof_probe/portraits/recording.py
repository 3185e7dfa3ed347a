"""Which module and which submitted line made each node of a graph, and what it saved, noted during one call.

Autograd numbers the nodes that a thread makes, so every note is an interval of numbers and no node is asked anything.
Anomaly mode would tell lines too, with the text of a whole stack for each node. This module must not look at a graph.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.trees import tensors

# The number that the next node made by this thread will have.
next_number: Final[Callable[[], int]] = torch._C._autograd._get_sequence_nr


@dataclass(slots=True)
class ModuleCall:
    """One call of one module: in it, nodes numbered from `first` up to, but not including, `last` were made."""

    name: str
    kind: str
    parent: int | None
    first: int
    last: int = 0
    seconds: float = 0.0  # of its forward, inner modules included


@dataclass(slots=True)
class Recording:
    """One call. `inputs` are the nodes by which the arguments came in; `saved` are bytes by the number of a node."""

    output: Any
    calls: list[ModuleCall]
    inputs: dict[Any, str]
    places: dict[int, Place | None] = field(default_factory=dict)
    saved: list[tuple[int, int]] = field(default_factory=list)


class ModuleCalls:
    """The calls of modules in the order in which they begin. The first is the call of the target itself."""

    def __init__(self, instance: torch.nn.Module | None, title: str) -> None:
        self.calls: list[ModuleCall] = []
        self._instance = instance
        self._title = title
        self._names = {} if instance is None else {id(module): name for name, module in instance.named_modules()}
        self._open: list[tuple[int, int, float]] = []  # index of the call, identity of the module, when it began

    @contextmanager
    def noting(self) -> Iterator[None]:
        with ExitStack() as stack:
            for handle in (
                register_module_forward_pre_hook(self._begin),
                register_module_forward_hook(self._end, always_call=True),
            ):
                stack.callback(handle.remove)
            self._push("", self._title, 0)
            try:
                yield
            finally:
                self._pop_to(0)

    def _begin(self, module: torch.nn.Module, _arguments: Any) -> None:
        if not self._is_target(module):
            kind = type(module).__name__
            self._push(self._names.get(id(module), f"({kind})"), kind, id(module))

    def _end(self, module: torch.nn.Module, _arguments: Any, _output: Any) -> None:
        if not self._is_target(module):
            self._pop_to(id(module))

    def _is_target(self, module: torch.nn.Module) -> bool:
        return module is self._instance and len(self._open) == 1

    def _push(self, name: str, kind: str, identity: int) -> None:
        parent = self._open[-1][0] if self._open else None
        self._open.append((len(self.calls), identity, time.perf_counter()))
        self.calls.append(ModuleCall(name, kind, parent, next_number()))

    def _pop_to(self, identity: int) -> None:
        """Close the call of this module, and those inside of it that an exception left open."""
        now = time.perf_counter()
        if not any(other == identity for _, other, _ in self._open):
            return
        while self._open:
            index, other, begun = self._open.pop()
            self.calls[index].last, self.calls[index].seconds = next_number(), now - begun
            if other == identity:
                return


class _Lines(torch.overrides.TorchFunctionMode):
    """The innermost submitted line at which each node was made."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self.places: dict[int, Place | None] = {}
        self._root = source_root
        self._paths: dict[str, str | None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next_number()
        result = func(*args, **(kwargs or {}))
        self.note(first)
        return result

    def note(self, first: int) -> None:
        """What was made since, and isn't noted yet, was made at the line that runs."""
        last = next_number()
        if last > first:
            place = self._line()
            for number in range(first, last):
                self.places.setdefault(number, place)

    def _line(self) -> Place | None:
        frame = sys._getframe(2)
        while frame is not None:
            path = self._path(frame.f_code.co_filename)
            if path is not None:
                return Place(path, frame.f_lineno)
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return None

    def _path(self, filename: str) -> str | None:
        if filename not in self._paths:
            self._paths[filename] = relative(filename, self._root)
        return self._paths[filename]


class _Saved:
    """The bytes that nodes keep for backward. Memory counts once, at the node that kept it first, and not at all if it
    is there anyway: parameters, buffers, arguments."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, int]] = []
        self._counted: set[int] = set()
        self._alive: list[Any] = []  # keeps addresses from being used again

    def exclude(self, values: Sequence[torch.Tensor]) -> None:
        for value in values:
            self._new(value)

    def hooks(self) -> AbstractContextManager[Any]:
        hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda value: value)
        return hooks

    def _pack(self, value: torch.Tensor) -> torch.Tensor:
        size = self._new(value)
        if size:
            self.saved.append((next_number() - 1, size))
        return value

    def _new(self, value: torch.Tensor) -> int:
        try:
            storage = value.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except RuntimeError:
            return 0  # sparse tensors and some subclasses have no storage
        if address == 0 or address in self._counted:
            return 0
        self._counted.add(address)
        self._alive.append(storage)
        return size


def record(experiment: Experiment, source_root: Path, title: str) -> Recording:
    """One forward. `title` is what the target is called in the recording. Raises `ForwardError`."""
    try:
        return _record(experiment, source_root, title, _Saved())
    except ForwardError as error:
        # torch.func.grad and vjp refuse to run under hooks for saved tensors: then their bytes stay unknown.
        if "saved tensor hooks" not in str(error.cause):
            raise
        return _record(experiment, source_root, title, None)


def _record(experiment: Experiment, source_root: Path, title: str, saved: _Saved | None) -> Recording:
    calls = ModuleCalls(experiment.instance, title)
    lines = _Lines(source_root)
    inputs: dict[Any, str] = {}
    names = {id(variable.leaf): variable.name for variable in experiment.variables}

    def look(given: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
        inputs.update((value.grad_fn, _name_of(value, names)) for value in given if value.grad_fn is not None)
        if saved is not None:
            module = experiment.instance
            saved.exclude([*given, *([] if module is None else [*module.parameters(), *module.buffers()])])
        stack = ExitStack()
        stack.enter_context(calls.noting())
        stack.enter_context(_custom_functions(lines.note))
        stack.enter_context(nullcontext() if saved is None else saved.hooks())
        stack.enter_context(lines)
        return stack

    output = run_within(experiment, look)
    return Recording(output, calls.calls, inputs, lines.places, [] if saved is None else saved.saved)


def run_within(experiment: Experiment, around: Callable[[Sequence[torch.Tensor]], AbstractContextManager[Any]]) -> Any:
    """One call of the target alone, within what `around` gives for its tensors. Raises `ForwardError`."""
    call = experiment.call

    def inside(*args: Any, **kwargs: Any) -> Any:
        with around([value for _, value in tensors([args, kwargs])]):
            return call(*args, **kwargs)

    experiment.call = inside
    try:
        return experiment.run_raw()[0]
    finally:
        experiment.call = call


def _name_of(argument: torch.Tensor, names: dict[int, str]) -> str:
    """An argument is the clone of a leaf: the name is the leaf's."""
    for node, _ in argument.grad_fn.next_functions if argument.grad_fn is not None else ():
        if id(getattr(node, "variable", None)) in names:
            return names[id(node.variable)]
    return "input"


@contextmanager
def _custom_functions(note: Callable[[int], None]) -> Iterator[None]:
    """`Function.apply` is no function that a mode sees. It goes through this class even where submitted code has kept
    the bound method."""
    base: Any = torch.autograd.function._SingleLevelFunction

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        first = next_number()
        try:
            return super(base, cls).apply(*args, **kwargs)
        finally:
            note(first)

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        del base.apply
