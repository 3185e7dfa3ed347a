"""Which submitted line of a segment does what its recomputation can't repeat. Each looks on during a direct run.

Nothing here judges: each answers with the place of something that was seen to happen.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, calling_line, relative
from gradproof_probe.suspicions.bench import same
from gradproof_probe.training.checkpointing import Watch
from gradproof_probe.training.plain_state import Attribute
from gradproof_probe.trees import tensors

_MOST_OPERATIONS: Final = 5000
_MOST_ELEMENTS: Final = 65_536  # of a tensor whose values are compared as well as its version
_MOST_ITEMS: Final = 100


class WatchedWrites(Watch):
    """The lines at which attributes, buffers, or the random state of Python and NumPy become others."""

    def __init__(self, source_root: Path, attributes: Sequence[Attribute] = (), *, python_random: bool = False) -> None:
        self._root = source_root
        self._attributes = attributes
        self._random = python_random
        self._modules: Sequence[torch.nn.Module] = ()
        self._paths: dict[str, str | None] = {}
        self._marks: dict[str, Any] = {}
        self._last: Place | None = None
        self._depth = 0
        self._found: list[tuple[bool, str, Place]] = []

    def first(self) -> tuple[str, Place] | None:
        """What changed first, and where: inside of a segment if anything changed there."""
        inside = [(name, place) for within, name, place in self._found if within]
        outside = [(name, place) for within, name, place in self._found if not within]
        return next(iter([*inside, *outside]), None)

    @contextmanager
    def around(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        self._modules = modules
        self._marks = dict(self._now())
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self._look()

    @contextmanager
    def segment(self, _number: int, *, again: bool) -> Iterator[None]:  # noqa: ARG002
        self._look()
        self._depth += 1
        try:
            yield
        finally:
            self._look()
            self._depth -= 1

    def _trace(self, frame: FrameType, _event: str, _value: Any) -> Any:
        return self._follow if self._path(frame) is not None else None

    def _follow(self, frame: FrameType, event: str, _value: Any) -> Any:
        self._look()
        if event == "return":
            caller = frame.f_back
            while caller is not None and self._path(caller) is None:
                caller = caller.f_back
            self._last = None if caller is None else self._place(caller)
        else:
            self._last = self._place(frame)
        return self._follow

    def _place(self, frame: FrameType) -> Place | None:
        path = self._path(frame)
        return None if path is None else Place(path, frame.f_lineno)

    def _path(self, frame: FrameType) -> str | None:
        filename = frame.f_code.co_filename
        if filename not in self._paths:
            self._paths[filename] = relative(filename, self._root)
        return self._paths[filename]

    def _look(self) -> None:
        """Whatever is another than at the last look was changed by the line that ran since."""
        for name, mark in self._now():
            if self._marks.get(name) != mark:
                self._marks[name] = mark
                if self._last is not None:
                    self._found.append((self._depth > 0, name, self._last))

    def _now(self) -> Iterator[tuple[str, Any]]:
        for attribute in self._attributes:
            number, _, owner = attribute.owner.rpartition(":")
            root = self._modules[int(number or 0)]
            item = root.get_submodule(owner)
            held = item._buffers if attribute.name in item._buffers else vars(item)
            yield str(attribute), _mark(held.get(attribute.name))
        if self._random:
            yield "random", hash(random.getstate())
            numpy = sys.modules.get("numpy")
            if numpy is not None:
                _, words, position, *_ = numpy.random.get_state()
                yield "numpy.random", (words.tobytes(), position)


def _mark(value: Any, depth: int = 0) -> Any:
    """Something that is another when the value is."""
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and value.numel() <= _MOST_ELEMENTS
        bits = value.detach().flatten().tolist() if plain else ()
        return id(value), 0 if value.is_inference() else value._version, str(bits)
    if isinstance(value, bool | int | float | complex | str) or value is None or depth > 2:
        return repr(value) if depth <= 2 else id(value)
    if isinstance(value, Mapping):
        return id(value), len(value), tuple(_mark(item, depth + 1) for item in list(value.values())[:_MOST_ITEMS])
    try:
        size = len(value)
        return id(value), size, tuple(_mark(item, depth + 1) for item in list(value)[:_MOST_ITEMS])
    except Exception:  # submitted objects may answer to len() in any way
        return id(value)


class RepeatedOperations(Watch):
    """The first operation that gives something else when its segment runs a second time from the same state."""

    def __init__(self, source_root: Path) -> None:
        self._root = source_root
        self._runs: dict[tuple[int, bool], _Results] = {}

    def segment(self, number: int, *, again: bool) -> AbstractContextManager[Any]:
        results = _Results(self._root)
        self._runs[number, again] = results
        return results

    def first(self) -> tuple[str, Place] | None:
        """The operation and its line."""
        for (number, again), second in sorted(self._runs.items(), key=lambda item: item[0]):
            first = self._runs.get((number, False))
            if not again or first is None:
                continue
            for a, b in zip(first.results, second.results, strict=False):
                if a[0] != b[0] or len(a[2]) != len(b[2]) or not all(map(same, a[2], b[2])):
                    return None if b[1] is None else (b[0], b[1])
        return None


class _Results(torch.overrides.TorchFunctionMode):
    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self.results: list[tuple[str, Place | None, list[torch.Tensor]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if len(self.results) < _MOST_OPERATIONS:
            found = [value.detach().clone() for _, value in tensors(result)]
            if found:
                name = getattr(func, "__name__", "an operation")
                self.results.append((name, calling_line(self._root), found))
        return result


class SavedUnfilled(Watch):
    """The line of an operation that saves a tensor for backward before it has written the values into it.

    A recomputation ends when the last tensor that is needed has been saved: what is written afterwards never is.
    """

    def __init__(self, source_root: Path) -> None:
        self._root = source_root
        self._found: list[Place] = []

    def first(self) -> Place | None:
        """Where, if it was in submitted code."""
        return next(iter(self._found), None)

    @contextmanager
    def segment(self, _number: int, *, again: bool) -> Iterator[None]:  # noqa: ARG002
        saved: list[tuple[torch.Tensor, torch.Tensor, int, Place | None]] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append((tensor, tensor.detach().clone(), tensor._version, calling_line(self._root)))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
        for tensor, copy, version, place in saved:
            if place is not None and tensor._version == version and not same(tensor, copy):
                self._found.append(place)
