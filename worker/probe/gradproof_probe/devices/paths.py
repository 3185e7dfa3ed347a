"""Which functions of torch submitted code calls, and with which numbers: does it go another way on another device?"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from gradproof_probe.gradients.attribution import Place, calling_line

_MOST: Final = 5_000
# What a module's own hooks and properties ask, and moves, which differ by nature.
_NOT_COUNTED: Final = frozenset({"__get__", "__set__", "to", "cpu", "cuda", "type", "numpy", "__repr__", "__format__"})
_READ_BY_PYTHON: Final = frozenset({"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__len__"})


@dataclass(frozen=True, slots=True)
class Step:
    """One call. `read` is a value that Python code took from a tensor, to branch on."""

    operation: str
    numbers: tuple[Any, ...]
    place: Place | None
    read: Any = None


class CallPath(TorchFunctionMode):
    """While open, the calls in `steps`, in order."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._root = source_root

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _NOT_COUNTED or len(self.steps) >= _MOST:
            return result
        flat = tree_flatten((args, kwargs or {}))[0]
        numbers = tuple(item for item in flat if isinstance(item, bool | int | float | torch.dtype))
        read = repr(result) if name in _READ_BY_PYTHON else None
        self.steps.append(Step(name, numbers, calling_line(self._root), read))
        return result

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """For `observe`: the call alone."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return run


@dataclass(frozen=True, slots=True)
class Fork:
    """Where two runs part. `by_value`: Python code read other numbers before that."""

    text: str
    place: Place | None
    by_value: bool


def fork(plain: list[Step], device: list[Step]) -> Fork | None:
    """The first call that one run makes and the other doesn't; None if they make the same."""
    by_value = False
    for one, other in itertools.zip_longest(plain, device):
        same = (
            one is not None and other is not None and (one.operation, one.numbers) == (other.operation, other.numbers)
        )
        if same:
            by_value |= one.read != other.read
            continue
        place = next((step.place for step in (other, one) if step is not None and step.place is not None), None)
        text = f"on the device it calls {_said(other)} where the CPU calls {_said(one)}"
        return Fork(text, place, by_value)
    return None


def _said(step: Step | None) -> str:
    if step is None:
        return "nothing more"
    numbers = ", ".join(str(item) for item in step.numbers[:4])
    return f"{step.operation}({numbers})" if numbers else step.operation
