"""Where a forward leaves autograd: detach, no_grad, .data, item, numpy, and hooks that change gradients.

A gradient that differs from finite differences because of these was cut on purpose, more often than not; no rule can
tell, so such a difference is explained with the line, never called a fault. The counterfactual run makes `detach` and
`no_grad` do nothing: if the difference vanishes, the cut is its whole cause (harness facts §4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, calling_line
from gradproof_probe.gradients.replacing import replaced

# Reading a number out of a tensor: the value goes on without gradient.
READERS: Final = ("item", "tolist", "numpy", "__float__", "__int__", "__array__")
CUTS: Final = ("detach", "detach_")


@dataclass(frozen=True, slots=True)
class Break:
    """`place` is None where torch's own code (or another library) did it."""

    what: str
    place: Place | None


class Breaks:
    def __init__(self, source_root: Path) -> None:
        self._root = source_root
        self.found: list[Break] = []

    def note(self, what: str) -> None:
        found = Break(what, calling_line(self._root))
        if found not in self.found and len(self.found) < 50:
            self.found.append(found)

    @contextmanager
    def watching(self, *, bridge: bool = False) -> Iterator[Breaks]:
        """Note every cut of a tensor that requires grad. `bridge`: also let detach and no_grad do nothing."""
        with ExitStack() as stack:
            for name in CUTS:
                stack.enter_context(replaced(torch.Tensor, name, self._cut(name, bridge=bridge)))
            for name in READERS:
                stack.enter_context(replaced(torch.Tensor, name, self._reader(name)))
            stack.enter_context(replaced(torch.Tensor, "register_hook", self._reader("register_hook")))
            stack.enter_context(replaced(torch.Tensor, "data", self._data(bridge=bridge)))
            stack.enter_context(replaced(torch.no_grad, "__enter__", self._no_grad(bridge=bridge)))
            yield self

    def _cut(self, name: str, *, bridge: bool) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def cut(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad and torch.is_grad_enabled():
                self.note(name)
                if bridge:
                    return tensor.view_as(tensor) if name == "detach" else tensor
            return original(tensor)

        return cut

    def _reader(self, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.requires_grad and torch.is_grad_enabled():
                self.note(name)
            return original(tensor, *args, **kwargs)

        return read

    def _data(self, *, bridge: bool) -> property:
        descriptor: Any = torch._C.TensorBase.data

        def get(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad:
                self.note("data")
                if bridge and torch.is_grad_enabled():
                    return tensor.view_as(tensor)
            return descriptor.__get__(tensor)

        def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
            self.note("data")
            descriptor.__set__(tensor, value)

        return property(get, put)

    def _no_grad(self, *, bridge: bool) -> Callable[..., None]:
        original = torch.no_grad.__enter__

        def enter(context: Any) -> None:
            if torch.is_grad_enabled():
                self.note("no_grad")
            original(context)
            if bridge:
                torch._C._set_grad_enabled(True)  # noqa: FBT003

        return enter
