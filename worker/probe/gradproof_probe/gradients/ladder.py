"""What differences do as their step falls: jump, stay zero, keep two slopes, or lose themselves in rounding.

A derivative is what they tend to. Where values jump the differences grow as 1 over the step; where a forward is locally
constant they are zero; at a corner the left and the right one are stable and differ; where it rounds inside, they get
better as the step grows. Growth is tested first: a quantiser's jumps look like noise otherwise (harness facts §4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from gradproof_probe.gradients.probing import Phi

STEPS: Final = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
Behaviour = Literal["jump", "constant", "corner", "coarse", "smooth"]


@dataclass(frozen=True, slots=True)
class Ladder:
    behaviour: Behaviour
    central: tuple[float, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]

    def to_numbers(self) -> dict[str, Any]:
        return {
            "steps": list(STEPS),
            "differences": list(self.central),
            "left": list(self.left),
            "right": list(self.right),
        }


def climb(phi: Phi, analytic: float, scale: float, rounding: float) -> Ladder:
    """Raises what `phi` raises. `scale`: how large a derivative is beside which a difference counts."""
    middle, size = phi(0.0)
    left, right, floors = [], [], []
    for step in STEPS:
        after, before = phi(step)[0], phi(-step)[0]
        right.append((after - middle) / step)
        left.append((middle - before) / step)
        floors.append(8 * rounding * size / step)
    central = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
    return Ladder(_behaviour(left, right, central, floors, analytic, scale), tuple(central), tuple(left), tuple(right))


def _behaviour(
    left: list[float], right: list[float], central: list[float], floors: list[float], analytic: float, scale: float
) -> Behaviour:
    size = max(scale, 1e-300)
    for side in (left, right, central):
        seen = [abs(value) for value, floor in zip(side, floors, strict=True) if abs(value) > 4 * floor]
        growth = [b / a for a, b in pairwise(seen) if a > 0]
        if len(growth) >= 2 and all(5 < item < 20 for item in growth[-2:]) and seen[-1] > 10 * size:
            return "jump"
    small = [abs(value) <= max(1e-9 * size, floor) for value, floor in zip(central, floors, strict=True)]
    if all(small[-3:]) and not all(small):
        return "jump"  # a step further off: the large steps cross it, the small ones stay before it
    if all(small):
        return "constant" if abs(analytic) > 1e-9 * size else "smooth"
    gaps = [abs(a - b) for a, b in zip(left, right, strict=True)]
    readable = [index for index, floor in enumerate(floors) if floor < 1e-3 * size]
    if len(readable) >= 2:
        first, last = readable[0], readable[-1]
        if gaps[last] > 1e-3 * size and gaps[last] > 0.3 * gaps[first]:
            return "corner"
    errors = [abs(value - analytic) for value in central]
    falling = [b / a for a, b in pairwise(errors) if a > 0]
    if len(falling) >= 3 and math.prod(falling) > 30 and errors[0] < 1e-2 * size and sum(f > 1 for f in falling) >= 3:
        return "coarse"
    return "smooth"
