"""Where a forward leaves autograd: detach, no_grad, .data, item, numpy, and hooks that change gradients.

A gradient that differs from finite differences because of these was cut on purpose, more often than not; no rule can
tell, so such a difference is explained with the line, never called a fault. Two runs decide whether a cut is the whole
cause. *Frozen*: what the cut gave at the base point is given again while the inputs move, so that differences take it
for the constant that autograd takes it for. *Bridged*: detach and no_grad do nothing (harness facts §4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.gradients.attribution import Place, calling_line
from gradproof_probe.gradients.replacing import replaced

# Reading a number out of a tensor: the value goes on without gradient.
READERS: Final = ("item", "tolist", "numpy", "__float__", "__int__", "__array__")
CUTS: Final = ("detach", "detach_")
HOOK: Final = "register_hook"


@dataclass(frozen=True, slots=True)
class Break:
    """`place` is None where torch's own code (or another library) did it."""

    what: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut that is about to happen. `original` does it; `tensor` is None where a number is read out."""

    found: Break
    original: Callable[[], Any]
    tensor: torch.Tensor | None = None


class Watch:
    """What is done at a cut. This one does what the code says."""

    def start(self, *, recording: bool) -> None:
        """Before every run; `recording`: it is one at the base point."""

    def at(self, cut: Cut) -> Any:
        return cut.original()

    def enters(self, _found: Break) -> bool:
        """A block without gradient begins; True to record gradients in it all the same."""
        return False

    def leaves(self, _found: Break) -> None:
        return None


class Bridge(Watch):
    """detach and no_grad do nothing; a number that was read out stays one."""

    def at(self, cut: Cut) -> Any:
        if cut.tensor is None:
            return cut.original()
        return cut.tensor if cut.found.what == "detach_" else cut.tensor.view_as(cut.tensor)

    def enters(self, _found: Break) -> bool:
        return True


class SequenceError(RuntimeError):
    """A run takes other cuts than the one that was recorded: what was recorded can't be given again."""


class Freeze(Watch):
    """Records what cuts give while `recording`; afterwards gives it again, in the same order.

    `only`: the line whose cuts are frozen; all, if None.
    """

    def __init__(self, only: Place | None = None) -> None:
        self.recording = True
        self._only = only
        self._kept: list[tuple[str, Any]] = []
        self._next = 0
        self._inside = 0  # blocks without gradient that are open, of those that count

    def start(self, *, recording: bool) -> None:
        self.recording = recording
        self._next = self._inside = 0
        if recording:
            self._kept = []

    def mode(self) -> TorchDispatchMode:
        return _Replay(self)

    def at(self, cut: Cut) -> Any:
        if not self._counts(cut.found) or self._inside:
            return cut.original()
        if self.recording:
            value = cut.original()
            self._kept.append((cut.found.what, _copy(value)))
            return value
        kept = self._give(cut.found.what)
        if cut.found.what == "detach_":
            raise SequenceError("detach_ changes its tensor")
        return _copy(kept)

    def enters(self, found: Break) -> bool:
        if self._counts(found):
            self._inside += 1
        return False

    def leaves(self, found: Break) -> None:
        if self._counts(found) and self._inside:
            self._inside -= 1

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that torch runs, with its result recorded, or replaced, inside a block without gradient."""
        result = func(*args, **kwargs)
        if not self._inside or not isinstance(result, torch.Tensor):
            return result
        returned = func._schema.returns[0].alias_info
        if returned is not None and not returned.is_write:
            return result  # a view: what it shows is frozen where it is computed or used
        name = str(func)
        if self.recording:
            self._kept.append((name, result.detach().clone()))
            return result
        kept = self._give(name)
        if kept.shape != result.shape or kept.dtype != result.dtype:
            raise SequenceError(f"{name} gives another shape")
        return kept.clone() if returned is None else result.copy_(kept)

    def _counts(self, found: Break) -> bool:
        return self._only is None or found.place == self._only

    def _give(self, what: str) -> Any:
        if self._next >= len(self._kept) or self._kept[self._next][0] != what:
            raise SequenceError(f"{what} is met where another cut was recorded")
        self._next += 1
        return self._kept[self._next - 1][1]


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if hasattr(value, "copy") else value


class _Replay(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See `PrecisionTrace`."""
        return False

    def __init__(self, freeze: Freeze) -> None:
        super().__init__()
        self._freeze = freeze

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._freeze.operation(func, args, kwargs or {})


class Breaks:
    """The cuts of the calls that are made while `watching`; `answer` says what is done at each."""

    def __init__(self, source_root: Path, answer: Watch | None = None) -> None:
        self._root = source_root
        self._answer = answer or Watch()
        self._open: list[Break | None] = []
        self.found: list[Break] = []

    def note(self, what: str) -> Break:
        found = Break(what, calling_line(self._root))
        if found not in self.found and len(self.found) < 50:
            self.found.append(found)
        return found

    @contextmanager
    def watching(self) -> Iterator[Breaks]:
        """Note every cut of a tensor that requires grad."""
        with ExitStack() as stack:
            for name in CUTS:
                stack.enter_context(replaced(torch.Tensor, name, self._cut(name)))
            for name in READERS:
                stack.enter_context(replaced(torch.Tensor, name, self._reader(name)))
            stack.enter_context(replaced(torch.Tensor, HOOK, self._reader(HOOK)))
            stack.enter_context(replaced(torch.Tensor, "data", self._data()))
            for block in (torch.no_grad, torch.set_grad_enabled, torch.inference_mode):
                stack.enter_context(replaced(block, "__enter__", self._enter(block)))
                stack.enter_context(replaced(block, "__exit__", self._exit(block)))
            mode = self._answer.mode() if isinstance(self._answer, Freeze) else nullcontext()
            stack.enter_context(mode)
            yield self

    def _cut(self, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def cut(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad and torch.is_grad_enabled():
                return self._answer.at(Cut(self.note(name), lambda: original(tensor), tensor))
            return original(tensor)

        return cut

    def _reader(self, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.requires_grad and torch.is_grad_enabled():
                found = self.note(name)
                if name != HOOK:
                    return self._answer.at(Cut(found, lambda: original(tensor, *args, **kwargs)))
            return original(tensor, *args, **kwargs)

        return read

    def _data(self) -> property:
        descriptor: Any = torch._C.TensorBase.data

        def get(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad and torch.is_grad_enabled():
                return self._answer.at(Cut(self.note("data"), lambda: descriptor.__get__(tensor), tensor))
            return descriptor.__get__(tensor)

        def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
            self.note("data")
            descriptor.__set__(tensor, value)

        return property(get, put)

    def _enter(self, block: type) -> Callable[..., Any]:
        original: Any = block.__enter__  # type: ignore[attr-defined]

        def enter(context: Any) -> Any:
            if not _switches_off(block, context):
                self._open.append(None)
                return original(context)
            found = self.note(block.__name__)
            self._open.append(found)
            entered = original(context)
            if self._answer.enters(found) and block is not torch.inference_mode:
                torch._C._set_grad_enabled(True)  # noqa: FBT003
            return entered

        return enter

    def _exit(self, block: type) -> Callable[..., Any]:
        original: Any = block.__exit__  # type: ignore[attr-defined]

        def leave(context: Any, *details: Any) -> Any:
            found = self._open.pop() if self._open else None
            if found is not None:
                self._answer.leaves(found)
            return original(context, *details)

        return leave


def _switches_off(block: type, context: Any) -> bool:
    """Whether entering this block ends the recording of gradients; `set_grad_enabled` does so when it is made."""
    if block is torch.set_grad_enabled:
        return bool(context.prev) and not context.mode
    return torch.is_grad_enabled() and bool(getattr(context, "mode", True))
