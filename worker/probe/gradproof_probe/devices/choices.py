"""Where values jump with their input - positions of the largest, order, comparisons - two devices may choose otherwise.

A choice between values that rounding can't tell apart is a tie: neither device is wrong, and all that follows differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.devices.errors import HALF_UNIT, RATIO
from gradproof_probe.gradients.attribution import Place, calling_line

_POSITIONS: Final = frozenset(
    {"argmax", "argmin", "topk", "sort", "max", "min", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"}
)
_COMPARISONS: Final = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
_JUMPS: Final = frozenset({"round", "floor", "ceil", "trunc", "sign", "sgn", "_to_copy"})
_MOST: Final = 2_000


@dataclass(frozen=True, slots=True)
class Choice:
    """One operation: what it chose from, and what it chose."""

    operation: str
    place: Place | None
    given: tuple[torch.Tensor, ...]
    chosen: torch.Tensor
    dimension: int | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """The first choice that two runs made differently. `margin` is what the chosen values differ by, over the largest;
    `within` what rounding can be blamed for; `given` what the device had to choose from differed by."""

    operation: str
    place: Place | None
    margin: float
    within: float
    given: float

    @property
    def is_tie(self) -> bool:
        return self.margin <= self.within

    @property
    def is_wrong(self) -> bool:
        """The choice itself: it had the same values to choose from."""
        return not self.is_tie and self.given <= self.within


class Choices(TorchDispatchMode):
    """While open, notes the choices that are made from floating values, in order."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self.made: list[Choice] = []
        self._root = source_root

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _POSITIONS and name not in _COMPARISONS and name not in _JUMPS:
            return result
        given = tuple(item for item in args if isinstance(item, torch.Tensor))
        chosen = _discrete(name, result)
        if not given or chosen is None or not given[0].is_floating_point() or len(self.made) >= _MOST:
            return result
        kept = tuple(_kept(item) for item in given)
        place = calling_line(self._root)
        self.made.append(Choice(name, place, kept, chosen.detach().cpu().clone(), _dimension(func, args, kwargs or {})))
        return result


def _discrete(name: str, result: Any) -> torch.Tensor | None:
    """What jumps of the result: positions, truth, whole numbers."""
    if isinstance(result, tuple | list):
        whole = [item for item in result if isinstance(item, torch.Tensor) and item.dtype == torch.int64]
        return whole[0] if whole else None
    if not isinstance(result, torch.Tensor):
        return None
    return None if result.is_floating_point() and (name == "_to_copy" or name in _POSITIONS) else result


def _kept(value: torch.Tensor) -> torch.Tensor:
    copied = value.detach().cpu()
    return copied.to(torch.float64) if copied.is_floating_point() else copied.clone()


def _dimension(func: Any, args: Any, kwargs: dict[str, Any]) -> int | None:
    """The dimension along which positions count; None where they count in the whole tensor."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.name == "dim":
            value = kwargs.get("dim", args[number] if number < len(args) else argument.default_value)
            return value if isinstance(value, int) else None
    return None


def first_flip(reference: list[Choice], plain: list[Choice], moved: list[Choice], device: list[Choice]) -> Flip | None:
    """The first choice that the CPU and the device made differently; None if there is none, or another way was gone."""
    for exact, own, shifted, other in zip(reference, plain, _padded(moved, len(plain)), device, strict=False):
        if own.operation != other.operation or own.chosen.shape != other.chosen.shape:
            return None
        if torch.equal(own.chosen, other.chosen):
            continue
        if exact.operation != own.operation or exact.chosen.shape != own.chosen.shape:
            return None
        scale = max((_largest(item) for item in exact.given if item.is_floating_point()), default=0.0) or 1.0
        apart = max(_apart(own, exact), _apart(shifted, exact), HALF_UNIT * scale)
        where = own.chosen != other.chosen
        margin = _margin(exact, own, other, where)
        given = _apart(other, exact)
        return Flip(own.operation, own.place, margin / scale, RATIO * apart / scale, given / scale)
    return None


def _padded(values: list[Choice], count: int) -> Iterator[Choice | None]:
    yield from (values[number] if number < len(values) else None for number in range(count))


def _largest(value: torch.Tensor) -> float:
    finite = value[torch.isfinite(value)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _apart(one: Choice | None, other: Choice) -> float:
    """The largest difference of what two runs chose from."""
    if one is None or one.operation != other.operation:
        return 0.0
    pairs = [
        (a, b) for a, b in zip(one.given, other.given, strict=False) if a.shape == b.shape and a.is_floating_point()
    ]
    return max((_largest(a - b) for a, b in pairs), default=0.0)


def _margin(exact: Choice, own: Choice, other: Choice, where: torch.Tensor) -> float:
    """What the values of the reference differ by that the two runs preferred to each other."""
    values = exact.given[0]
    if own.operation in _POSITIONS:
        dimension = exact.dimension
        if dimension is None:
            flat = values.flatten()
            return _largest(flat[own.chosen.flatten()] - flat[other.chosen.flatten()])
        whole = values.unsqueeze(0) if values.dim() == 0 else values
        return _largest(_picked(whole, own.chosen, dimension) - _picked(whole, other.chosen, dimension))
    if own.operation in _COMPARISONS:
        against = exact.given[1] if len(exact.given) > 1 else None
        gap = values - against if against is not None else values
        return _largest(gap.abs().broadcast_to(where.shape)[where]) if against is not None else 0.0
    return _largest((own.given[0] - other.given[0])[where])


def _picked(values: torch.Tensor, positions: torch.Tensor, dimension: int) -> torch.Tensor:
    where = positions if positions.dim() == values.dim() else positions.unsqueeze(dimension)
    return values.gather(dimension, where)
