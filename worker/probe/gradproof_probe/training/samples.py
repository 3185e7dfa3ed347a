"""The samples of a batch in the inputs of a target: how many, in which tensors, and other values for one of them.

The harness mostly gives two samples, or one; more are made of them, as many as no other axis has, so that a size tells
which axis it is. This module must not call the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.trees import tensors, transform

SIZES: Final = (3, 5, 7, 4, 11)
_MOST_MEMBERS: Final = 8


@dataclass(slots=True)
class Batch:
    """`args` and `kwargs` hold `size` samples along `axis` of each tensor in `members` (positions among all tensors).

    `first` is the position of the tensor that decided how many samples there are.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    axis: int
    size: int
    members: tuple[int, ...]
    first: int

    def changed(self, sample: int, *, modest: bool = False) -> Batch:
        """The same with larger values for one sample; `modest` ones are smaller, so that shares stay within [0, 1]."""
        low, high = (0.4, 0.95) if modest else (1.3, 3.0)
        return self._with(lambda tensor, axis: _another(tensor, axis, sample, low, high))

    def resized(self, size: int, *, without: int | None = None) -> Batch:
        members = tuple(item for item in self.members if item != without)
        other = Batch(self.args, self.kwargs, self.axis, self.size, members, self.first)._with(
            lambda tensor, axis: _resized(tensor, axis, size)
        )
        other.size = size
        return other

    def copied(self) -> Batch:
        """The same with tensors of its own, since a call may write to its inputs."""
        return self._with(lambda tensor, _: tensor)

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in tensors([self.args, self.kwargs])]

    def spare_sizes(self) -> Iterator[int]:
        """Numbers of samples that no other axis has, nor a multiple of them."""
        taken = {
            size
            for number, tensor in enumerate(self.tensors())
            for axis, size in enumerate(tensor.shape)
            if number not in self.members or axis != _axis_of(tensor, self.axis)
        }
        yield from (size for size in SIZES if all(other % size for other in taken if other))

    def _with(self, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Batch:
        own = {id(tensor): number for number, tensor in enumerate(self.tensors())}

        def replace(tensor: torch.Tensor) -> torch.Tensor:
            value = tensor.detach().clone()
            return change(value, _axis_of(value, self.axis)) if own.get(id(tensor)) in self.members else value

        args = [transform(value, replace) for value in self.args]
        kwargs = {name: transform(value, replace) for name, value in self.kwargs.items()}
        return Batch(args, kwargs, self.axis, self.size, self.members, self.first)


def batch_along(args: list[Any], kwargs: dict[str, Any], axis: int) -> Batch | None:
    """None where no tensor has that axis beside another one."""
    found = [tensor for _, tensor in tensors([args, kwargs])]
    if any(tensor.layout != torch.strided for tensor in found):
        return None
    wide = [number for number, tensor in enumerate(found) if tensor.ndim > axis + 1]
    floating = [number for number in wide if found[number].is_floating_point() or found[number].is_complex()]
    if not wide:
        return None
    first = (floating or wide)[0]
    size = found[first].shape[axis]
    members = tuple(
        number
        for number, tensor in enumerate(found)
        if tensor.ndim > 0 and tensor.shape[_axis_of(tensor, axis)] == size and tensor.numel()
    )
    return Batch(args, kwargs, axis, size, members, first) if 0 < len(members) <= _MOST_MEMBERS else None


def confined(changed: torch.Tensor, size: int, sample: int | None = None) -> list[int]:
    """Axes along which a change is no further spread than one of `size` samples: that one, where it is given.

    An axis may hold the samples together with another one, whichever comes first.
    """
    found = []
    for axis, length in enumerate(changed.shape):
        if not length or length % size:
            continue
        others = [other for other in range(changed.ndim) if other != axis]
        touched = changed.amax(dim=others) if others else changed
        step = length // size
        if int(touched.sum()) > step:
            continue
        places = touched.nonzero().flatten()
        if sample is None or bool((places // step == sample).all()) or bool((places % size == sample).all()):
            found.append(axis)
    return found


def in_blocks(changed: torch.Tensor, axis: int, size: int) -> bool:
    """Whether what belongs to one of `size` samples lies together along an axis, as `repeat_interleave` lays it."""
    others = [other for other in range(changed.ndim) if other != axis]
    places = (changed.amax(dim=others) if others else changed).nonzero().flatten()
    step = changed.shape[axis] // size
    return bool((places // step == places[0] // step).all())


def one_sample_kept(now: torch.Tensor, then: torch.Tensor, size: int, sample: int) -> torch.Tensor:
    """`then`, with what belongs to one sample taken from `now`: of a tensor without samples, nothing."""
    axes = [axis for axis, length in enumerate(now.shape) if length and length % size == 0]
    if not axes:
        return then
    axis = min(axes, key=lambda item: now.shape[item])
    step = now.shape[axis] // size
    kept = then.clone()
    kept.narrow(axis, sample * step, step).copy_(now.narrow(axis, sample * step, step))
    return kept


def following_axes(
    small: Sequence[torch.Tensor], large: Sequence[torch.Tensor], sizes: tuple[int, int]
) -> list[int | None]:
    """For each output, the one axis that grew with the number of samples; None where it is none, or several."""
    found: list[int | None] = []
    for a, b in zip(small, large, strict=True):
        grown = [
            axis
            for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=False))
            if m != n and m * sizes[1] == n * sizes[0]
        ]
        found.append(grown[0] if a.ndim == b.ndim and len(grown) == 1 else None)
    return found


def _axis_of(tensor: torch.Tensor, axis: int) -> int:
    return min(axis, tensor.ndim - 1)


def _another(tensor: torch.Tensor, axis: int, sample: int, low: float, high: float) -> torch.Tensor:
    own = tensor.select(axis, sample)
    if tensor.is_floating_point() or tensor.is_complex():
        own.copy_(_varied(own, 3, low, high))
    elif tensor.dtype == torch.bool:
        pattern = torch.arange(max(own.numel(), 1)) % 2 == 0
        own.copy_(pattern[: own.numel()].reshape(own.shape))
    else:
        own.copy_(_other_numbers(tensor, axis, sample))
    return tensor


def _resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    given = tensor.shape[axis]
    samples = [tensor.select(axis, number % given) for number in range(size)]
    made = [
        _varied(sample, 5 + number, 0.4, 0.95) if number >= given and tensor.is_floating_point() else sample
        for number, sample in enumerate(samples)
    ]
    return torch.stack(made, dim=axis)


def _varied(values: torch.Tensor, seed: int, low: float, high: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    factor = low + (high - low) * torch.rand(values.shape, generator=generator, dtype=torch.float64)
    varied = values * factor.to(values)
    return varied if bool(values.any()) else factor.to(values)


def _other_numbers(tensor: torch.Tensor, axis: int, sample: int) -> torch.Tensor:
    """Numbers that occur, so that indices stay within their range."""
    own = tensor.select(axis, sample)
    for other in range(tensor.shape[axis]):
        values = tensor.select(axis, other)
        if not torch.equal(values, own):
            return values.clone()
    return own.flatten().roll(1).reshape(own.shape) if own.ndim else own.clone()
