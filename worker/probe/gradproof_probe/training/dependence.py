"""How far a change of some input elements gets: operation by operation, with the submitted lines.

One run is recorded, then others with changed inputs are compared with it while they run. A caller says what makes a
result clean (the change is where it may be); operations that make an unclean result of clean ones are where it goes
astray. Results can be replaced on the way, to show that nothing else is the cause. This module must not judge.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from gradproof_probe.gradients.attribution import Place, calling_line, relative
from gradproof_probe.trees import tensors

# Elements of all recorded results together: 256 MiB of float32. Beyond, places are not looked for.
MOST_ELEMENTS: Final = 2**26
# Other rows are computed from the same numbers in the same order: what differs more was reached by the change. A shift
# that cancels, such as that by the largest score, leaves its rounding.
_RELATIVE: Final = 1e-5
_TOLERANCE: Final = 1e-6
_OUTLYING: Final = 1e4
_TRIANGLES: Final = frozenset({"tril", "triu", "tril_", "triu_", "generate_square_subsequent_mask"})

Clean = Callable[[torch.Tensor], bool]
Repair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class DivergedError(Exception):
    """The run with changed inputs takes another way through the code, so its operations can't be compared."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`inputs` are its tensors and where each was changed. `function` is the submitted one around it, `through` are
    the functions of torch in between."""

    number: int
    name: str
    place: Place | None
    function: str
    through: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[tuple[torch.Tensor, torch.Tensor | None], ...]
    output: torch.Tensor
    changed: torch.Tensor


@dataclass(slots=True)
class _Recorded:
    name: str
    results: list[torch.Tensor]


@dataclass(slots=True)
class Way:
    """`seen` are the operations whose results changed, in order; `astray` those of them that made unclean results of
    clean ones. `outputs` are pairs: as they are now, and as they were."""

    outputs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    astray: list[Operation] = field(default_factory=list)
    seen: list[Operation] = field(default_factory=list)


class Recording(TorchFunctionMode):
    """The results of every function of torch in one run; where triangular masks are made; `causal` attention."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self.records: list[_Recorded] = []
        self.triangles: list[Place] = []
        self.causal = False
        self.elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        version = _version(args)
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        results = _results(result, args, version)
        self.elements += sum(item.numel() for item in results)
        self.causal |= bool((kwargs or {}).get("is_causal"))
        if name in _TRIANGLES:
            place = calling_line(self._root)
            self.triangles += [place] if place is not None else []
        kept = [item.detach().clone() for item in results] if self.elements <= MOST_ELEMENTS else []
        self.records.append(_Recorded(name, kept))
        return result

    @property
    def whole(self) -> bool:
        return self.elements <= MOST_ELEMENTS


class Comparison(TorchFunctionMode):
    """A run compared with a recorded one, operation by operation."""

    def __init__(
        self,
        recording: Recording,
        source_root: Path,
        clean: Clean,
        *,
        repaired: Sequence[int] = (),
        repair: Repair | None = None,
    ) -> None:
        super().__init__()
        self._records = recording.records
        self._root = source_root
        self._clean = clean
        self._repaired = frozenset(repaired)
        self._repair = repair
        self._number = 0
        self._changed: dict[int, torch.Tensor] = {}
        self._unclean: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self.way = Way()

    def begin(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """The inputs of this run, each with what it was in the recorded one."""
        for tensor, before in pairs:
            self._note(tensor, differs(tensor, before))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        inputs = [tensor for _, tensor in tensors([list(args), dict(given)])]
        came_unclean = any(id(item) in self._unclean for item in inputs)
        noted = tuple((item, self._changed.get(id(item))) for item in inputs)
        version = _version(args)
        result = func(*args, **given)
        number, self._number = self._number, self._number + 1
        if number >= len(self._records) or self._records[number].name != name:
            raise DivergedError
        results = _results(result, args, version)
        before = self._records[number].results
        if not before:
            return result
        if len(before) != len(results) or any(a.shape != b.shape for a, b in zip(before, results, strict=True)):
            raise DivergedError
        for now, then in zip(results, before, strict=True):
            changed = differs(now, then)
            if number in self._repaired and self._repair is not None:
                with torch.no_grad(), contextlib.suppress(RuntimeError):  # an expanded tensor takes no values
                    now.copy_(self._repair(now, then))
                changed = differs(now, then)
            unclean = changed is not None and not self._clean(changed)
            self._note(now, changed, unclean=unclean)
            if changed is not None:
                operation = self._operation(number, name, args, given, noted, now, changed)
                self.way.seen.append(operation)
                if unclean and not came_unclean:
                    self.way.astray.append(operation)
        return result

    def _operation(
        self,
        number: int,
        name: str,
        args: Any,
        kwargs: Mapping[str, Any],
        inputs: tuple[tuple[torch.Tensor, torch.Tensor | None], ...],
        output: torch.Tensor,
        changed: torch.Tensor,
    ) -> Operation:
        frame: FrameType | None = sys._getframe(2)
        through: list[str] = []
        place, function = None, ""
        while frame is not None and place is None:
            path = relative(frame.f_code.co_filename, self._root)
            if path is not None:
                owner = frame.f_locals.get("self")
                function = f"{type(owner).__name__ if owner is not None else ''}.{frame.f_code.co_name}"
                place = Place(path, frame.f_lineno)
            else:
                through.append(frame.f_code.co_name)
            frame = frame.f_back
        if place is None:
            through = []
        return Operation(number, name, place, function, tuple(through), tuple(args), kwargs, inputs, output, changed)

    def _note(self, tensor: torch.Tensor, changed: torch.Tensor | None, *, unclean: bool = False) -> None:
        self._alive.append(tensor)  # its id must not be given to another
        if changed is None:
            self._changed.pop(id(tensor), None)
        else:
            self._changed[id(tensor)] = changed
        (self._unclean.add if unclean else self._unclean.discard)(id(tensor))


def differs(now: torch.Tensor, then: torch.Tensor) -> torch.Tensor | None:
    """Where two tensors of one shape differ by more than rounding; None where nowhere."""
    if now.shape != then.shape or now.layout != torch.strided or then.layout != torch.strided:
        return None
    a, b = now.detach(), then.detach()
    unequal = a != b
    if a.is_floating_point() or a.is_complex():
        unequal &= ~(a.isnan() & b.isnan())
        near = (a - b).abs() <= _RELATIVE * torch.maximum(a.abs(), b.abs()) + _TOLERANCE * _scale(b)
        unequal &= ~(near & a.isfinite() & b.isfinite())
    return unequal if bool(unequal.any()) else None


def _scale(values: torch.Tensor) -> float:
    """The largest value, but for those that stand for minus infinity in masked attention scores."""
    sizes = values.abs().flatten()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    return min(float(sizes.max()), _OUTLYING * float(sizes.median())) if len(sizes) else 1.0


def _version(args: Any) -> int:
    first = args[0] if args else None
    return first._version if isinstance(first, torch.Tensor) and not first.is_inference() else -1


def _results(result: Any, args: Any, version: int) -> list[torch.Tensor]:
    """What an operation gave: its tensors, and the first argument where it was written to."""
    found = [tensor for _, tensor in tensors(result)]
    first = args[0] if args else None
    if version >= 0 and _version(args) > version and all(item is not first for item in found):
        found.append(first)
    return found
