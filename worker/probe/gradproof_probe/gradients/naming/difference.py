"""One pair of gradients, looked at once: where they differ, where they say nothing, and when an explanation fits.

Every rule asks these questions with the same tolerances. No rule is here, and no words.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import torch

from gradproof_probe.gradients.naming.pairs import Evidence, GradientPair
from gradproof_probe.gradients.situations import Situation

# Results of a few dozen operations in float64 agree to 1e-12 of the largest; derivatives by autograd likewise.
_ROUNDING: Final = 1e-12
# A difference is wrong beyond this part of the value: a slip that rounds to float32 makes one of 3e-8.
_RELATIVE: Final = 1e-10
# An explanation leaves no more than this part of the difference unexplained (and the noise).
_UNEXPLAINED: Final = 1e-5
# Noise of gradients in the precision of a situation, as a part of the largest: some tens of roundings.
_NOISE: Final = {"float64": 0.0, "float32": 2e-6, "float16": 1e-2, "bfloat16": 6e-2}


def noise(situation: Situation) -> float:
    """The part of a gradient's size that is noise in this situation."""
    found = _NOISE.get(situation.dtype, 0.0)
    if situation.autocast:
        found = max(found, _NOISE["bfloat16"])
    if "default_float32" in situation.flags or "float32_precision_high" in situation.flags:
        found = max(found, _NOISE["float32"])
    return found


class Difference:
    """One pair with what is asked of it again and again."""

    def __init__(self, pair: GradientPair, evidence: Evidence, only: torch.Tensor | None = None) -> None:
        """`only`: a mask of the coordinates to look at."""
        self.pair = pair
        self.evidence = evidence
        self.name = pair.name
        self.place = next(place for place, other in enumerate(evidence.pairs) if other is pair)
        self.shape = tuple(pair.analytic.shape)
        self.analytic = pair.analytic
        self.reference = pair.reference
        known = torch.isfinite(pair.reference) & torch.isfinite(pair.analytic)
        self.known = known if only is None else known & only
        self.complete = bool(self.known.all())
        self._everything = self.complete
        self.narrowed = only is not None
        self.memory: dict[str, Any] = {}  # what one rule worked out and another may use

    @cached_property
    def a(self) -> torch.Tensor:
        """The returned values at the known coordinates, flat."""
        return self.pick(self.analytic)

    @cached_property
    def r(self) -> torch.Tensor:
        """The derivative at the known coordinates, flat."""
        return self.pick(self.reference)

    @cached_property
    def d(self) -> torch.Tensor:
        return self.a - self.r

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the pair's shape at the known coordinates, flat."""
        return values.reshape(-1) if self._everything else values[self.known]

    @cached_property
    def scale(self) -> float:
        if not self.a.numel():
            return 0.0
        return float(torch.maximum(self.a.abs(), self.r.abs()).max())

    @cached_property
    def largest(self) -> float:
        """The largest difference."""
        return float(self.d.abs().max()) if self.d.numel() else 0.0

    @cached_property
    def floor(self) -> float:
        """What differs by no more than this is equal."""
        return 10 * self.pair.error + (_ROUNDING + noise(self.evidence.situation)) * self.scale

    @cached_property
    def wrong(self) -> torch.Tensor:
        """Mask over the known coordinates (flat): where the returned value is wrong."""
        size = torch.maximum(self.a.abs(), self.r.abs())
        return self.d.abs() > self.floor + _RELATIVE * size

    @cached_property
    def telling(self) -> torch.Tensor:
        """Mask over the known coordinates (flat): wrong, or right and not merely zero on both sides."""
        return self.wrong | (self.r.abs() > max(self.floor, 1e-9 * self.scale))

    @cached_property
    def is_wrong(self) -> bool:
        return bool(self.wrong.any())

    def worst(self) -> tuple[int, ...]:
        """The index of the largest difference."""
        spread = torch.where(self.known, (self.analytic - self.reference).abs(), 0.0).reshape(-1)
        return self.index(int(spread.argmax()))

    def index(self, flat: int) -> tuple[int, ...]:
        found: list[int] = []
        for size in reversed(self.shape):
            found.append(flat % size)
            flat //= size
        return tuple(found[::-1])

    def explains(self, left_over: torch.Tensor, of: torch.Tensor | None = None) -> bool:
        """Whether what an explanation leaves of the difference is noise. `left_over`: at known coordinates.

        `of`: what was explained, if it may be much smaller than the difference: a part in 10⁵ of a large derivative
        says nothing about a small gradient.
        """
        if not left_over.numel() or self.floor > 0.2 * self.largest:
            return False
        size = min(self.largest, self.scale)
        if of is not None:
            size = min(size, float(of.abs().max()))
        return bool(left_over.abs().max() <= self.floor + _UNEXPLAINED * size)

    def equals(self, candidate: torch.Tensor) -> bool:
        """Whether the returned gradient is `candidate` (of the pair's shape; NaN where unknown)."""
        if tuple(candidate.shape) != self.shape:
            return False
        if self.complete and not self.narrowed:
            # A candidate that is not finite somewhere explains nothing: comparisons with NaN are false.
            return self.explains(self.analytic - candidate)
        both = torch.isfinite(candidate) & torch.isfinite(self.analytic)
        count = int(both.sum())
        if count < min(4, candidate.numel()):
            return False
        left_over = (self.analytic - candidate)[both] if count < candidate.numel() else self.analytic - candidate
        return self.explains(left_over)

    def within(self, mask: torch.Tensor) -> Difference:
        """The same pair at fewer coordinates. `mask`: of the pair's shape."""
        return Difference(self.pair, self.evidence, mask & self.known)

    def mask(self, flat: torch.Tensor) -> torch.Tensor:
        """A mask over the known coordinates as one of the pair's shape."""
        if self._everything:
            return flat.reshape(self.shape)
        full = torch.zeros(self.shape, dtype=torch.bool, device=flat.device)
        full[self.known] = flat
        return full
