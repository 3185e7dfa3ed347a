"""Two gradients differ: which of them is the derivative? Finite differences at the worst coordinates decide.

The oracle is only autograd through the forward, and at a corner every subgradient is right, so a difference is not a
fault yet. Here one coordinate at a time is moved, the derivative extrapolated with an error estimate (Ridders 1982),
and both sides compared with it. Only a gradient that differences contradict, at a point without a corner, is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.experiment import ForwardError, rms
from gradproof_probe.gradients.probing import Phi, UnstableError, kinked, ridders
from gradproof_probe.gradients.situations import Situation
from gradproof_probe.gradients.subject import Subject

Ruling = Literal["wrong", "right", "kink", "unclear"]

COORDINATES: Final = 5  # looked at before a difference is called a matter of corners
# First steps, relative to the input's root mean square; the largest for what rounds inside.
STEPS: Final = (1e-3, 1e-5)
COARSE_STEPS: Final = (1e-1, 2e-2)
# Agreement with the differences: ten times their error estimate, or a part of what lies between the two candidates.
BEYOND: Final = 10.0
BETWEEN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What two gradients may differ by: a share of the largest entry of the variable, and one of all variables."""

    relative: float
    floor: float

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        """float64: sums in another order differ by 1e-13, ill-conditioned ones by 1e-9. float32: 1e-6 to 1e-4."""
        return Tolerance(1e-7, 1e-11) if dtype == torch.float64 else Tolerance(3e-3, 1e-5)


@dataclass(frozen=True, slots=True)
class Ruled:
    """`numeric` is the derivative at the flat `coordinate` of variable `ordinal`, good to `error`."""

    ruling: Ruling
    ordinal: int
    coordinate: int
    analytic: complex
    reference: complex
    numeric: float
    error: float


def differs(
    analytic: Sequence[torch.Tensor | None],
    reference: Sequence[torch.Tensor | None],
    tolerance: Tolerance,
    natural: float = 0.0,
) -> list[int]:
    """The numbers of the variables in which they differ. None counts as zeros; NaN in both is no difference.

    `natural`: what gradients here are usually as large as. A softmax whose outputs all get the same cotangent has a
    gradient of zero, and what is returned is rounding beside it.
    """
    pairs = list(zip(analytic, reference, strict=True))
    if all(a is None or (r is not None and a.shape == r.shape and torch.equal(a, r)) for a, r in pairs) and not any(
        a is None and r is not None for a, r in pairs
    ):
        return []
    largest = max((largest_of(item) for pair in pairs for item in pair if item is not None), default=0.0)
    largest = max(largest, natural)
    return [
        number
        for number, (a, r) in enumerate(pairs)
        if not (a is None and r is None) and _differ(a, r, tolerance, largest)
    ]


def _differ(a: torch.Tensor | None, r: torch.Tensor | None, tolerance: Tolerance, largest: float) -> bool:
    if a is None or r is None:
        size = largest_of(r if a is None else a)
        return size > tolerance.floor * largest and size > 0
    if a.shape != r.shape:
        return True
    if not a.numel():
        return False
    difference = (a - r).abs()
    worst = float(difference.max())
    scale = max(float(r.abs().max()), 0.0)
    if math.isfinite(worst) and math.isfinite(scale):
        return worst > tolerance.relative * scale + tolerance.floor * largest
    # Where the reference isn't finite there is nothing to compare with.
    known = torch.isfinite(r)
    if not bool(known.any()):
        return False
    a, r = a[known], r[known]
    if not bool(torch.isfinite(a).all()):
        return True
    return float((a - r).abs().max()) > tolerance.relative * float(r.abs().max()) + tolerance.floor * largest


def largest_of(item: torch.Tensor) -> float:
    if not item.numel():
        return 0.0
    size = float(item.abs().max())
    return size if math.isfinite(size) else float(item.nan_to_num(0.0, 0.0, 0.0).abs().max())


class Judge:
    """`rounding`: relative error of one evaluation of the forward."""

    def __init__(self, subject: Subject, rounding: float) -> None:
        self._subject = subject
        self.rounding = rounding

    def rule(
        self,
        situation: Situation,
        analytic: Sequence[torch.Tensor | None],
        reference: Sequence[torch.Tensor | None],
        cotangents: Sequence[torch.Tensor],
        only: Sequence[int],
    ) -> Ruled:
        """The ruling on the worst coordinates; the first that is clear. Values as `situation` makes them."""
        last: Ruled | None = None
        for ordinal, coordinate, a, r in self._worst(analytic, reference, only):
            ruled = self._at(situation, cotangents, (ordinal, coordinate), a, r)
            if ruled.ruling in ("wrong", "right"):
                return ruled
            last = last if last is not None and last.ruling == "kink" else ruled
        assert last is not None
        return last

    def _worst(
        self,
        analytic: Sequence[torch.Tensor | None],
        reference: Sequence[torch.Tensor | None],
        only: Sequence[int],
    ) -> list[tuple[int, int, complex, complex]]:
        found: list[tuple[float, int, int, complex, complex]] = []
        for ordinal in only:
            a, r = analytic[ordinal], reference[ordinal]
            shape = (a if a is not None else r).shape  # type: ignore[union-attr]
            flat_a = torch.zeros(shape, dtype=torch.float64) if a is None else a
            flat_r = torch.zeros(shape, dtype=torch.float64) if r is None else r
            flat_a, flat_r = flat_a.reshape(-1), flat_r.reshape(-1)
            if flat_a.shape != flat_r.shape:
                continue
            size = (flat_a - flat_r).abs().to(torch.float64)
            size = torch.where(torch.isfinite(flat_r), size.nan_to_num(math.inf, math.inf), -1.0)
            values, places = size.topk(min(COORDINATES, size.numel()))
            for value, place in zip(values.tolist(), places.tolist(), strict=True):
                if value > 0:
                    found.append((value, ordinal, place, flat_a[place].item(), flat_r[place].item()))
        found.sort(key=lambda item: -item[0])
        return [item[1:] for item in found[:COORDINATES]]

    def _at(
        self,
        situation: Situation,
        cotangents: Sequence[torch.Tensor],
        where: tuple[int, int],
        analytic: complex,
        reference: complex,
    ) -> Ruled:
        ordinal, coordinate = where
        # Of a complex coordinate the part in which they differ is moved: real or imaginary.
        gap = analytic - reference
        imaginary = abs(complex(gap).imag) > abs(complex(gap).real)
        a, r = _part(analytic, imaginary=imaginary), _part(reference, imaginary=imaginary)
        phi, size = self.along(situation, cotangents, ordinal, coordinate, imaginary=imaginary)
        best, error = 0.0, math.inf
        try:
            for step in COARSE_STEPS if self.rounding > 1e-9 else STEPS:
                value, estimate = ridders(phi, step * size, self.rounding)
                if estimate < error:
                    best, error = value, estimate
                if error <= 1e-3 * BETWEEN * abs(a - r):
                    break
            corner = kinked(phi, size, self.rounding, max(abs(best), abs(r)))
        except (UnstableError, ForwardError):
            return Ruled("unclear", ordinal, coordinate, analytic, reference, math.nan, math.inf)
        ruling = "kink" if corner else _decide(a, r, best, error)
        return Ruled(ruling, ordinal, coordinate, analytic, reference, best, error)

    def along(
        self,
        situation: Situation,
        cotangents: Sequence[torch.Tensor],
        ordinal: int,
        coordinate: int,
        *,
        imaginary: bool = False,
    ) -> tuple[Phi, float]:
        """`moving` one coordinate; and the size of the variable."""
        subject = self._subject
        made = subject.make(situation)
        position = subject.positions[ordinal]
        if situation.alias:
            shape = made[position].shape
            position = next(index for index in subject.positions if made[index].shape == shape)

        def move(step: float) -> list[Any]:
            moved = list(made)
            moved[position] = made[position].clone()
            moved[position].view(-1)[coordinate] += step * 1j if imaginary else step
            return moved

        return self.moving(situation, cotangents, move), rms(made[position])

    def moving(
        self, situation: Situation, cotangents: Sequence[torch.Tensor], move: Callable[[float], list[Any]]
    ) -> Phi:
        """t -> (v.f at the arguments that `move(t)` gives, the size of its terms)."""
        subject = self._subject
        asked = situation.cotangent.outputs
        factor = 2 if situation.sequence == "used_twice" else 1
        weights = [item.detach().to(_wide(item)) * factor for item in cotangents]

        def phi(step: float) -> tuple[float, float]:
            moved = move(step)
            # All of them require grad, as in training: some code takes another way without.
            outputs = subject.forward(subject.given(subject.leaves(moved, None, alias=situation.alias), situation))
            if len(outputs) != len(weights):
                raise UnstableError("the number of outputs changes")
            total = size = 0.0
            for index, (output, weight) in enumerate(zip(outputs, weights, strict=True)):
                # What forward declares non-differentiable has a cotangent here, but hands none on.
                if not output.requires_grad or (asked is not None and index not in asked):
                    continue
                if output.shape != weight.shape:
                    raise UnstableError("an output changes its shape")
                product = weight.conj() * output.detach()
                terms = (product.real if product.is_complex() else product).to(torch.float64)
                total += float(terms.sum())
                size += float(terms.abs().sum())
            if not math.isfinite(total):
                raise UnstableError("an output isn't finite close to the inputs")
            return total, size

        return phi


def _wide(item: torch.Tensor) -> torch.dtype:
    return torch.complex128 if item.is_complex() else torch.float64


def _part(value: complex, *, imaginary: bool) -> float:
    return complex(value).imag if imaginary else complex(value).real


def _decide(analytic: float, reference: float, numeric: float, error: float) -> Ruling:
    between = abs(analytic - reference)
    near_reference = abs(numeric - reference) <= min(BEYOND * error + 1e-9 * abs(reference), 0.3 * between)
    near_analytic = abs(numeric - analytic) <= min(BEYOND * error + 1e-9 * abs(analytic), 0.3 * between)
    if not math.isfinite(between):
        # A gradient that isn't finite where the derivative is.
        return "wrong" if abs(numeric - reference) <= BEYOND * error + 1e-3 * abs(reference) else "unclear"
    if error > BETWEEN * between:
        return "unclear"
    if near_reference or abs(numeric - reference) <= BETWEEN * between:
        return "wrong"
    if near_analytic or abs(numeric - analytic) <= BETWEEN * between:
        return "right"
    # Neither: the reference is no derivative here, and what was returned isn't either.
    # (A forward that iterates to a tolerance is good to 1e-5 or so, and its differences with it.)
    return "wrong" if abs(numeric - analytic) > BEYOND * error + 1e-4 * abs(numeric) else "unclear"


def largest(items: Sequence[torch.Tensor | None]) -> float:
    """The largest finite magnitude in any of them."""
    return max((largest_of(item) for item in items if item is not None), default=0.0)
