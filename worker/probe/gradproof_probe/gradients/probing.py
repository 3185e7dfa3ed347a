"""One number against one number: the derivative of v.f along u, by autograd and by differences.

For random v and u the cost is some dozen forwards whatever the size. The differences carry an error estimate of their
own, and only what lies far beyond it is called a mismatch (checks facts 2.3; 0 false alarms in 1008 runs of correct
functions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from gradproof_probe.gradients.experiment import Experiment, ForwardError, Output, differentiable, rms
from gradproof_probe.importing import describe_error

# First steps, relative to each variable's root mean square. Large first: the extrapolation is most accurate where the
# function is smooth; the small ones are for functions with kinks or poles close by.
STEPS: Final = (1e-2, 1e-4, 2e-6)
SINGLE_STEPS: Final = (1e-1, 2e-2)
LEVELS: Final = 4  # halvings of the step in one extrapolation table (Ridders 1982; 4 in the measured prototype)
# Relative rounding of one evaluation: what v.f may be off by, as a share of the sum of its terms' sizes.
ROUNDING: Final = {torch.float64: 1e-15, torch.float32: 2.5e-7}
# An error beyond ten times the estimate and 1e-7 of the gradient's own size; for float32 the sum of rounding in a
# backward pass reaches 1e-3 in deep models, and 1e-2 is what a wrong formula exceeds.
BEYOND: Final = 10.0
RELATIVE: Final = {torch.float64: 1e-7, torch.float32: 1e-2}
# The estimate must be this good for agreement to mean anything.
POWER: Final = 1e-3

Judgement = Literal["agree", "mismatch", "kink", "weak"]
Phi = Callable[[float], tuple[float, float]]
Enough = Callable[[float, float], bool]


class UnstableError(Exception):
    """Two evaluations can't be compared: another number of outputs, other shapes, or not finite."""


class OutsideError(UnstableError):
    """The function refuses values beside the given ones, or isn't finite there: a border of its domain is near."""


@dataclass(frozen=True, slots=True)
class Probe:
    """`error` is the estimate for `numeric`; `scale` the size of the terms of the analytic value."""

    judgement: Judgement
    analytic: float
    numeric: float
    error: float
    scale: float

    @property
    def difference(self) -> float:
        return abs(self.analytic - self.numeric)


@dataclass(slots=True)
class Linearisation:
    """Outputs, cotangents and the gradient of their product, at the experiment's base point."""

    experiment: Experiment
    paths: list[str]
    shapes: list[tuple[int, ...]]
    cotangents: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    rounding: float
    relative: float
    steps: tuple[float, ...]

    def phi(self, directions: Sequence[torch.Tensor | None]) -> Phi:
        """t -> (v.f(x + t u), the sum of the sizes of its terms)."""

        def evaluate(step: float) -> tuple[float, float]:
            self.experiment.place(directions, step)
            try:
                values = {output.path: output.value for output in self.experiment.run()}
            except ForwardError as error:
                raise OutsideError(f"it raises {describe_error(error.cause, 200)} close to the inputs") from error
            total = size = 0.0
            for path, shape, cotangent in zip(self.paths, self.shapes, self.cotangents, strict=True):
                value = values.get(path)
                if value is None or tuple(value.shape) != shape:
                    raise UnstableError(f"output {path or 'value'} changes its shape between evaluations")
                terms = _real_product(cotangent, value.detach())
                total += float(terms.sum())
                size += float(terms.abs().sum())
            if not math.isfinite(total):
                raise OutsideError("an output isn't finite close to the inputs")
            return total, size

        return evaluate

    def analytic(self, directions: Sequence[torch.Tensor | None]) -> tuple[float, float]:
        """(g.u, the norm of its terms)."""
        total = square = 0.0
        for gradient, direction in zip(self.gradients, directions, strict=True):
            if gradient is not None and direction is not None:
                terms = _real_product(gradient, direction)
                total += float(terms.sum())
                square += float(terms.square().sum())
        return total, math.sqrt(square)


def _real_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Re(conj(a) b) elementwise in float64: torch's gradient of a complex variable is meant so."""
    product = a.detach().conj() * b
    real = product.real if product.is_complex() else product
    return real.to(torch.float64)


def random_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(tensor.shape, generator=generator, dtype=dtype).to(tensor.dtype)


def linearise(experiment: Experiment, generator: torch.Generator, *, rounding: float, single: bool) -> Linearisation:
    """Raises `ForwardError`, `BackwardError`, `UnstableError`."""
    experiment.put_back()
    outputs = differentiable(experiment.run())
    cotangents = [random_like(output.value, generator) for output in outputs]
    gradients = experiment.gradients(outputs, cotangents)
    return linearisation(experiment, outputs, cotangents, gradients, rounding=rounding, single=single)


def linearisation(
    experiment: Experiment,
    outputs: Sequence[Output],
    cotangents: list[torch.Tensor],
    gradients: list[torch.Tensor | None],
    *,
    rounding: float,
    single: bool,
) -> Linearisation:
    dtype = torch.float32 if single else torch.float64
    return Linearisation(
        experiment=experiment,
        paths=[output.path for output in outputs],
        shapes=[tuple(output.value.shape) for output in outputs],
        cotangents=cotangents,
        gradients=[None if item is None else item.detach().clone() for item in gradients],
        rounding=rounding,
        relative=RELATIVE[dtype],
        # What rounds inside (float32 in a float64 run) is lost in small steps.
        steps=SINGLE_STEPS if single or rounding > 1e-9 else STEPS,
    )


def random_direction(like: torch.Tensor, generator: torch.Generator, size: float) -> torch.Tensor:
    """Random signs (complex: turns) x U(0.5, 1.5) x size: no coordinate is diluted or cancelled."""
    length = (torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5) * size
    if like.is_complex():
        turn = torch.rand(like.shape, generator=generator, dtype=torch.float64) * (2 * math.pi)
        return (length * torch.polar(torch.ones_like(turn), turn)).to(like.dtype)
    sign = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int64).to(torch.float64) * 2 - 1
    return (sign * length).to(like.dtype)


def random_directions(
    experiment: Experiment, generator: torch.Generator, only: set[int] | None = None
) -> list[torch.Tensor | None]:
    """One a variable, of the size of its values. `only`: indices of variables."""
    return [
        random_direction(variable.base, generator, rms(variable.base)) if only is None or index in only else None
        for index, variable in enumerate(experiment.variables)
    ]


def probe(line: Linearisation, directions: Sequence[torch.Tensor | None]) -> Probe:
    """Raises `ForwardError` and `UnstableError`; leaves the experiment at its base point."""
    analytic, scale = line.analytic(directions)
    phi = line.phi(directions)
    best: tuple[float, float] | None = None

    def enough(numeric: float, error: float) -> bool:
        return agrees_closely(analytic, numeric, error, line.relative * max(scale, abs(numeric)))

    try:
        for step in line.steps:
            numeric, error = ridders(phi, step, line.rounding, enough)
            if best is None or error < best[1]:
                best = (numeric, error)
            numeric, error = best
            if error <= POWER * max(scale, abs(numeric)) and _agree(line, analytic, numeric, error, scale):
                return Probe("agree", analytic, numeric, error, scale)
        assert best is not None
        numeric, error = best
        return Probe(_judge(line, phi, analytic, numeric, error, scale), analytic, numeric, error, scale)
    finally:
        line.experiment.put_back()


def agrees_closely(analytic: float, numeric: float, error: float, tolerance: float) -> bool:
    """Whether they agree within the tolerance alone, beside which the error estimate is nothing any more."""
    return BEYOND * error <= tolerance and abs(analytic - numeric) <= tolerance


def _agree(line: Linearisation, analytic: float, numeric: float, error: float, scale: float) -> bool:
    return abs(analytic - numeric) <= BEYOND * error + line.relative * max(scale, abs(numeric))


def _judge(line: Linearisation, phi: Phi, analytic: float, numeric: float, error: float, scale: float) -> Judgement:
    if kinked(phi, 1.0, line.rounding, max(scale, abs(numeric))):
        return "kink"
    if _agree(line, analytic, numeric, error, scale):
        # It agrees, but only because the estimate is loose (or both are zero: then nothing was tested).
        return "agree" if error <= POWER * max(scale, abs(numeric)) and scale > 0 else "weak"
    # A mismatch must be seen by every step that can see it, not by the best one alone.
    for step in (line.steps[-1] / 4, line.steps[-1] * 8):
        other, other_error = ridders(phi, step, line.rounding)
        if _agree(line, analytic, other, other_error, scale):
            return "weak"
    return "mismatch"


def kinked(phi: Phi, size: float, rounding: float, scale: float) -> bool:
    """One-sided derivatives that stay apart as the step falls: a corner or a jump right at the point.

    `size`: what a step of 1 is measured in; `scale`: how large a derivative is beside which a gap counts.
    """
    middle, terms = phi(0.0)
    steps = (1e-2, 1e-3) if rounding > 1e-9 else (1e-4, 1e-5, 1e-6)
    gaps = []
    for relative in steps:
        step = relative * size
        right, left = phi(step)[0], phi(-step)[0]
        gap = abs((right - middle) / step - (middle - left) / step)
        gaps.append((gap, 8 * rounding * terms / step))
    first, last = gaps[0], gaps[-1]
    return last[0] > 10 * last[1] and last[0] > 1e-6 * scale and last[0] > 0.3 * first[0]


def ridders(phi: Phi, step: float, rounding: float, enough: Enough | None = None) -> tuple[float, float]:
    """(derivative at 0, error estimate): central differences, extrapolated over `LEVELS` halvings of the step.

    Over fewer, where `enough` says of a derivative and its error that more halvings would decide nothing.
    """
    table: list[list[float]] = []
    best, best_error = 0.0, math.inf
    size = 0.0
    for level in range(LEVELS):
        h = step / 2**level
        (right, size_right), (left, size_left) = phi(h), phi(-h)
        size = max(size, size_right, size_left)
        row = [(right - left) / (2 * h)]
        floor = rounding * size / h
        for order in range(1, level + 1):
            factor = 4.0**order
            row.append((factor * row[order - 1] - table[level - 1][order - 1]) / (factor - 1))
            error = max(abs(row[order] - row[order - 1]), abs(row[order] - table[level - 1][order - 1]), floor)
            if error < best_error:
                best, best_error = row[order], error
        table.append(row)
        if enough is not None and level and enough(best, best_error):
            break
    return best, best_error
