"""What a recording of one call (torch.jit.trace, torch.export) does with other inputs than it was made from.

A recording holds the operations of one call: which side of a branch, how often a loop, which number out of `.item()`.
The tracer warns at such lines; whether it matters shows at inputs on the other side. Only values are compared here: a
recording that refuses another shape says so itself. This module must not decide who is to blame.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import torch
from torch.overrides import TorchFunctionMode

from gradproof_probe.equivalence.observation import relative_error
from gradproof_probe.gradients.attribution import Place, calling_line, relative
from gradproof_probe.harness.recipe import Built
from gradproof_probe.nan_search.domains import left
from gradproof_probe.nan_search.subject import Inputs
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors, transform

How = Literal["torch.jit.trace", "torch.export"]
Flat = Callable[..., tuple[torch.Tensor, ...]]
# The same kernels run on both sides: what differs by more is another computation.
SAME: Final = 1e-3
_MOST_LINES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Baked:
    """A line whose Python value became a constant of the recording."""

    place: Place
    what: str

    def to_wire(self) -> dict[str, Any]:
        return {"line": f"{self.place.path}:{self.place.line}", "what": self.what}


@dataclass(frozen=True, slots=True)
class Other:
    """Other inputs, in words; `same_shapes` as the recorded ones."""

    words: str
    values: list[torch.Tensor]
    same_shapes: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """`refused` is what the recording raised; else how far its outputs are from eager's."""

    other: Other
    error: float
    refused: str = ""
    place: Place | None = None

    @property
    def differs(self) -> bool:
        return not self.refused and self.error > SAME


class Recording:
    """The target as a function of its tensors alone, in eval mode and without gradients, and a recording of it."""

    def __init__(self, built: Built, source_root: Path, seed: int) -> None:
        if built.instance is not None:
            built.instance.eval()
            built.instance.requires_grad_(requires_grad=False)
        self._built = built
        self._root = source_root
        self._seed = seed
        self.example = flat_tensors([built.args, built.kwargs])
        self.baked: list[Baked] = []
        self._recorded: Callable[..., Any] | None = None

    def eager(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the target gives for these tensors in the places of its own."""
        waiting = iter(values)
        args, kwargs = transform([self._built.args, self._built.kwargs], lambda _: next(waiting))
        reseed(self._seed)
        return tuple(value for _, value in tensors(self._built.call(*args, **kwargs)))

    def record(self, how: How) -> None:
        """Raises what the recorder raises."""
        given = tuple(value.clone() for value in self.example)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            if how == "torch.export":
                self._recorded = torch.export.export(_Part(self.eager), given, strict=False).module()
            else:
                self._recorded = torch.jit.trace(self.eager, given, check_trace=False)
        found = {}
        for item in caught:
            path = relative(item.filename, self._root)
            if path is not None and issubclass(item.category, torch.jit.TracerWarning):
                found[Place(path, item.lineno)] = _shortened(str(item.message))
        self.baked = [Baked(place, what) for place, what in found.items()]

    def compare(self, other: Other) -> Compared | None:
        """None where eager itself doesn't take these inputs, or answers them with nothing finite."""
        assert self._recorded is not None
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = self.eager(*_copies(other.values))
                again = self.eager(*_copies(other.values))
            except Exception:
                return None
            if _apart(expected, again) > 0 or not all(bool(item.isfinite().all()) for item in expected):
                return None
            try:
                with torch.jit.optimized_execution(should_optimize=False):
                    reseed(self._seed)
                    found = self._recorded(*_copies(other.values))
            except Exception as error:
                return Compared(other, 0.0, refused=f"{type(error).__name__}: {_shortened(str(error))}")
            apart = _apart(expected, tuple(value for _, value in tensors(found)))
            return Compared(other, apart, place=self._turning_point(other) if apart > SAME else None)

    def _turning_point(self, other: Other) -> Place | None:
        """The first line that took a Python value from a tensor and another one at these inputs.

        A size is no such value: then it is the last line before execution takes another way, the head of a loop.
        """
        first, second = self._conversions(self.example), self._conversions(other.values)
        for (at, value), (other_at, other_value) in zip(first, second, strict=False):
            if at != other_at:
                break
            if value != other_value:
                return at
        before: Place | None = None
        for at, other_at in zip_longest(self._way(self.example), self._way(other.values)):
            if at != other_at:
                return before
            before = at
        return next((item.place for item in self.baked), None)

    def _way(self, values: Sequence[torch.Tensor]) -> list[Place]:
        """The submitted lines in the order of execution."""
        seen: list[Place] = []
        paths: dict[str, str | None] = {}

        def called(frame: FrameType, _event: str, _argument: Any) -> Any:
            name = frame.f_code.co_filename
            if name not in paths:
                paths[name] = relative(name, self._root)
            path = paths[name]
            if path is None:
                return None

            def stepped(frame: FrameType, event: str, _argument: Any) -> Any:
                if event == "line" and len(seen) < _MOST_LINES:
                    seen.append(Place(path, frame.f_lineno))
                return stepped

            return stepped

        before = sys.gettrace()
        sys.settrace(called)
        try:
            self.eager(*_copies(values))
        finally:
            sys.settrace(before)
        return seen

    def _conversions(self, values: Sequence[torch.Tensor]) -> list[tuple[Place | None, Any]]:
        noted = _Conversions(self._root)
        with noted:
            self.eager(*_copies(values))
        return noted.seen


class _Part(torch.nn.Module):
    """torch.export takes modules only."""

    def __init__(self, function: Flat) -> None:
        super().__init__()
        self._function = function

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._function(*values)


class _Conversions(TorchFunctionMode):
    """The Python values that are taken from tensors, with the lines."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self.seen: list[tuple[Place | None, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "__contains__", "equal"):
            self.seen.append((calling_line(self._root), result))
        return result


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """In the order in which `transform` meets them."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.detach())
        return tensor

    transform(value, note)
    return found


def others(example: Sequence[torch.Tensor], redrawn: Sequence[torch.Tensor] | None) -> Iterator[Other]:
    """The most ordinary first: drawn anew, then other signs and sizes, then other shapes."""
    made: list[tuple[str, list[torch.Tensor] | None, bool]] = [
        ("other values of the same kind", None if redrawn is None else list(redrawn), True),
        ("values with the other sign", _changed(example, lambda x: -x), True),
        ("values 10 times as large", _changed(example, lambda x: x * 10), True),
        ("values a hundred times as small", _changed(example, lambda x: x * 0.01), True),
        ("zeros", _changed(example, torch.zeros_like), True),
        ("masks inverted", _inverted(example), True),
        ("a batch of one", _sized(example, 0, lambda x: x[:1]), False),
        ("twice the batch", _sized(example, 0, lambda x: torch.cat([x, x])), False),
        ("twice the length", _sized(example, 1, lambda x: torch.cat([x, x], 1)), False),
        ("half the length", _sized(example, 1, lambda x: x[:, : x.shape[1] // 2]), False),
    ]
    given = Inputs(list(example), {})
    for words, values, same in made:
        if values is None or any(not value.numel() for value in values):
            continue
        shapes = [value.shape for value in values] == [value.shape for value in example]
        if shapes == same and left(given, Inputs(values, {})) is None:
            yield Other(words, values, same)


def _changed(
    example: Sequence[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor] | None:
    if not any(value.is_floating_point() for value in example):
        return None
    return [change(value) if value.is_floating_point() else value for value in example]


def _inverted(example: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    if not any(value.dtype == torch.bool for value in example):
        return None
    return [~value if value.dtype == torch.bool else value for value in example]


def _sized(
    example: Sequence[torch.Tensor], axis: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor] | None:
    """Every tensor that has the first one's size along the axis."""
    if not example or example[0].dim() <= axis or example[0].shape[axis] < 2:
        return None
    size = example[0].shape[axis]
    return [change(value) if value.dim() > axis and value.shape[axis] == size else value for value in example]


def _copies(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value.clone() for value in values]


def _apart(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """The largest relative difference; infinite for other shapes."""
    if [item.shape for item in expected] != [item.shape for item in found]:
        return float("inf")
    return max(
        (relative_error(b.to(torch.float64), a.to(torch.float64), 0.0) for a, b in zip(expected, found, strict=True)),
        default=0.0,
    )


def _shortened(message: str) -> str:
    return message.strip().partition("\n")[0].partition(". ")[0][:200]
