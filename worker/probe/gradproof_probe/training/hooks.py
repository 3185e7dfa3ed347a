"""Hooks on gradients while a target runs: which write into the gradient they are shown, and which can't be called.

A gradient that a hook is shown may be on its way to another branch too. Whether a write matters is found out by giving
the hook a copy: what it meant to change is changed for its own branch alone then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import InPlaceWrites, Place, calling_line
from gradproof_probe.gradients.replacing import replaced

_ON_TENSORS: Final = "register_hook"
_ON_MODULES: Final = ("register_full_backward_hook", "register_full_backward_pre_hook")


class Hooks:
    """`writes`: where hooks wrote in place, or were registered; `raising`: (line, error) of those that raised."""

    def __init__(self, source_root: Path, *, copies: bool = False) -> None:
        self._root = source_root
        self._copies = copies
        self.writes: list[Place] = []
        self.raising: list[tuple[Place, BaseException]] = []

    @contextmanager
    def watching(self) -> Iterator[Hooks]:
        """Open while the target is built as well: modules register their hooks in constructors."""
        with ExitStack() as stack:
            stack.enter_context(replaced(torch.Tensor, _ON_TENSORS, self._on_tensor(torch.Tensor.register_hook)))
            for name in _ON_MODULES:
                original = getattr(torch.nn.Module, name)
                stack.enter_context(replaced(torch.nn.Module, name, self._on_module(original)))
            yield self

    def _on_tensor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            place = calling_line(self._root)

            def called(gradient: torch.Tensor) -> Any:
                given = gradient.clone() if self._copies else gradient
                before, writes = given._version, InPlaceWrites(self._root)
                try:
                    with writes:
                        result = hook(given)
                except Exception as error:
                    self._raised(place, error)
                    raise
                if given._version != before:
                    written = writes.line_of(given) or place
                    self.writes += [written] if written is not None and written not in self.writes else []
                return given if result is None and self._copies else result

            return original(tensor, called)

        return register

    def _on_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(module: torch.nn.Module, hook: Callable[..., Any], *more: Any, **named: Any) -> Any:
            place = calling_line(self._root)

            def called(*args: Any) -> Any:
                try:
                    return hook(*args)
                except Exception as error:
                    self._raised(place, error)
                    raise

            return original(module, called, *more, **named)

        return register

    def _raised(self, place: Place | None, error: BaseException) -> None:
        if place is not None:
            self.raising.append((place, error))
