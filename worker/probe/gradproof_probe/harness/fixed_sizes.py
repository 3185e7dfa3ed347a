"""Sizes that a network fixes without saying so: an image that has to be so large that what is flattened fits a layer.

`flatten(1)` before `Linear(9216, …)` wants one side of image only, and says no more than how many features came and how
many were wanted. Their number grows with the side, so the side is found in a few trials, each told by those before.
Text and sizes in, changed arguments out; nothing is run here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gradproof_probe.harness.arguments import Argument, Arguments, leaves, with_leaves

_LARGEST: Final = {1: 65_536, 2: 512, 3: 96}  # side by the number of axes that grow together
_STEPS: Final = 8  # a secant through a step function; convolutions and poolings need 3 or 4
_Observed = dict[float, int]
_Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class FixedSizes:
    """What the trials of one call said so far of sizes behind a flattening."""

    def __init__(self) -> None:
        self._seen: dict[_Key, _Observed] = {}

    def changes(self, message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
        """(changed arguments, why), to be tried next; nothing if the error speaks of another thing."""
        listed = leaves(arguments)
        for made, why in _grown(message, listed):
            yield with_leaves(arguments, made), why
        for index, changed, why in self._flattened(message, listed):
            yield with_leaves(arguments, (*listed[:index], changed, *listed[index + 1 :])), why

    def _flattened(self, message: str, listed: Arguments) -> Iterator[tuple[int, Argument, str]]:
        for index, argument in enumerate(listed):
            if argument.kind not in ("float", "int") or len(argument.shape) < (2 if argument.kind == "int" else 3):
                continue
            asked = _features(message, argument.shape[0])
            if asked is None:
                continue
            rows, have, want = asked
            if argument.shape[-1] == have and rows in (None, math.prod(argument.shape[:-1])):
                continue  # the features themselves, which nothing flattened
            if rows is not None and len(argument.shape) == 3 and rows != argument.shape[0]:
                # The layer took the channels for a batch: an image was taken for one without.
                yield index, argument.with_shape((2, *argument.shape)), "a batch of images"
            for axes in _growing(len(argument.shape)):
                side = self._side(index, argument.shape, axes, have, want)
                if side is not None:
                    shape = tuple(side if axis in axes else size for axis, size in enumerate(argument.shape))
                    if side == 1 and len(shape) == 3 and axes == (1,):
                        shape = (shape[0], shape[2])  # no sequence at all is the simpler reading
                    why = f"side {side}, since {have} features came where {want} are wanted"
                    yield index, replace(argument, shape=shape), why

    def _side(self, index: int, shape: tuple[int, ...], axes: tuple[int, ...], have: int, want: int) -> int | None:
        """The side that would give the features that are wanted, by all that was seen at other sides."""
        others = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        seen = self._seen.setdefault((want, index, axes, others), {})
        count = len(axes)
        seen[math.prod(shape[axis] for axis in axes) ** (1 / count)] = have
        return None if len(seen) > _STEPS else next_side(seen, want, count, _LARGEST[count])


def _grown(message: str, listed: Arguments) -> Iterator[tuple[Arguments, str]]:
    """Larger than a kernel: twice the side, until it is; of all that are alike, such as two images to be compared."""
    count = _axes_too_small(message)
    # One axis of features and perhaps one of a batch are in front.
    fitting = [a for a in listed if count and a.kind == "float" and len(a.shape) - count in (1, 2)]
    for shape in dict.fromkeys(argument.shape for argument in fitting):
        side = 2 * max(shape[-count:])
        if side <= _LARGEST[count]:
            grown = (*shape[:-count], *(side,) * count)
            made = tuple(a.with_shape(grown) if a.kind == "float" and a.shape == shape else a for a in listed)
            yield made, f"the kernel is larger: side {side}"


def next_side(seen: _Observed, want: int, count: int, largest: int) -> int | None:
    """Features grow about as the side does, to the power of the axes that grow; then with its steps, by bisection."""
    below = max((side for side, have in seen.items() if have < want), default=None)
    above = min((side for side, have in seen.items() if have > want), default=None)
    nearest = sorted(seen, key=lambda side: abs(seen[side] - want))
    root = want ** (1 / count)
    roots = {side: have ** (1 / count) for side, have in seen.items()}
    first, second = (below, above) if below is not None and above is not None else (nearest[0], nearest[-1])
    if first is None or second is None or first == second:
        guess = nearest[0] * root / max(roots[nearest[0]], 1e-9)
    elif roots[first] == roots[second]:
        return None  # it doesn't depend on this side
    else:
        guess = first + (root - roots[first]) * (second - first) / (roots[second] - roots[first])
    low = math.floor(below) + 1 if below is not None else 1
    high = math.ceil(above) - 1 if above is not None else largest
    side = min(max(round(guess), low), high, largest)
    return side if side >= low and side not in seen else None


def _growing(rank: int) -> tuple[tuple[int, ...], ...]:
    """Axes that may have been flattened together with the features: those behind a batch and channels, then others."""
    return {2: ((1,),), 3: ((2,), (1,)), 4: ((2, 3), (1,)), 5: ((2, 3, 4), (3, 4), (1,))}.get(rank, ())


def _axes_too_small(message: str) -> int:
    """How many axes are smaller than the kernel that goes over them; 0 where the message says nothing of one."""
    match = re.search(r"max_pool(\d)d\(\) Invalid computed output size", message)
    if match:
        return int(match[1])
    match = re.search(r"input size(?: per channel)?: \(([\dx ]+)\)", message)
    if not match or not re.search(r"Kernel size can't be greater|Output size is too small", message):
        return 0
    count = len(re.findall(r"\d+", match[1])) - ("Output size" in message)  # which counts the features as well
    return count if count in _LARGEST else 0


def _features(message: str, batch: int) -> tuple[int | None, int, int] | None:
    """(rows, features that came, features that were wanted), as far as the message says."""
    match = re.search(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x\d+\)", message)
    if match:
        return int(match[1]), int(match[2]), int(match[3])
    match = re.search(r"running_mean should contain (\d+) elements not (\d+)", message)
    if match:
        return None, int(match[1]), int(match[2])
    match = re.search(r"normalized_shape=\[(\d+)\], .* input of size\s*\[(?:\d+, )*(\d+)\]", message)
    if match:
        return None, int(match[2]), int(match[1])
    match = re.search(r"shape '\[(-?\d+), ([\d, ]+)\]' is invalid for input of size (\d+)", message)
    if match and int(match[1]) in (-1, batch) and batch and int(match[3]) % batch == 0:
        return None, int(match[3]) // batch, math.prod(int(item) for item in match[2].split(","))
    return None
