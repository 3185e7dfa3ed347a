"""The target under autocast, in bfloat16 and float16: what it raises there alone, what is not finite there alone, and
how far its results are from those in full precision, next to what rounding alone costs.

Casts are those of CUDA, whatever the machine. Nothing is judged by a tolerance of ours: the yardstick is the same call
with every result rounded to the narrow type's digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.equivalence.observation import Mode, Observation, norm, observe
from gradproof_probe.gradients.attribution import Place, innermost
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.harness.trial import NO_DERIVATIVE
from gradproof_probe.importing import Resolved, describe_error
from gradproof_probe.training.cuda_autocast import HALF
from gradproof_probe.training.rounding_mode import Rounding
from gradproof_probe.trees import transform

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
DTYPES: Final = (torch.bfloat16, torch.float16)
# A gradient smaller than this share of the largest is judged against that: what is zero but for rounding (a bias in
# front of a normalisation) has no size of its own.
FLOOR: Final = 0.1
# A tenth of the largest number of float16: what is larger is on its way out of it.
_ROOM: Final = 0.1 * torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run, and how it is built."""

    resolved: Resolved
    recipe: Recipe
    source_root: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that one way of running alone raises."""

    text: str
    place: Place | None
    of_dtypes: bool  # it complains of types, or of a number that doesn't fit one


@dataclass(slots=True)
class Row:
    """One line of the table of errors: a kind of result in one type."""

    dtype: str
    given: str
    what: str
    name: str = ""
    error: float = 0.0
    rounding: float = 0.0
    not_finite: list[str] = field(default_factory=list)

    def to_wire(self) -> dict[str, Any]:
        shown = {"dtype": self.dtype, "inputs": self.given, "of": self.what, "worst": self.name}
        alone = self.rounding if math.isfinite(self.rounding) else None
        return shown | {"error": self.error, "rounding_alone": alone, "not_finite": self.not_finite}


class HalfResults(TorchDispatchMode):
    """Counts the results in a narrow type: a call without any wasn't touched by autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks; True would import torch._dynamo at the first operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += isinstance(result, torch.Tensor) and result.dtype in HALF
        return result


def under_autocast(
    dtype: torch.dtype, *, half_inputs: bool = False, counter: HalfResults | None = None, scale: float = 1.0
) -> Wrap:
    """Forward under autocast, backward outside of it; `half_inputs`: they come from a layer that ran under it too.

    `scale` is what the loss is multiplied with: gradients of many outputs can leave the range of float16 without it.
    """

    def scaled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float32) * scale if tensor.dtype in (*HALF, torch.float32) else tensor

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if half_inputs:
                args, kwargs = transform(args, _to(dtype)), transform(kwargs, _to(dtype))
            with torch.autocast("cpu", dtype=dtype), counter or nullcontext():
                found = call(*args, **kwargs)
            return found if scale == 1 else transform(found, scaled)

        return run

    return wrap


def _to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.dtype in (torch.float32, torch.float64) else tensor


# What torch says where types don't go together, and where a number doesn't fit.
_OF_DTYPES: Final = re.compile(
    r"same dtype|dtypes? (?:to )?match|scalar type|\bdtypes?\b|without overflow|but got .*(?:Half|BFloat16)|"
    r"(?:Half|BFloat16).* (?:and|vs|!=) |should be the same|_fwd_used_autocast",
    re.IGNORECASE,
)
_NOT_IN_HALF: Final = re.compile(r"not implemented for|not supported|unsupported", re.IGNORECASE)


def tried(subject: Subject, mode: Mode, wrap: Wrap) -> Observation | Raised:
    """What it leaves behind, or what it raises."""
    try:
        return observe(subject.resolved, subject.recipe, seed=subject.seed, mode=mode, wrap=wrap)
    except Exception as error:
        text = describe_error(error, 300)
        about = bool(_OF_DTYPES.search(str(error))) and not _NOT_IN_HALF.search(str(error))
        return Raised(text, innermost(error.__traceback__, subject.source_root), about)


def reference(subject: Subject, mode: Mode) -> tuple[Observation, torch.dtype]:
    """In float64; in its own precision where the code does not let itself be promoted."""
    for dtype in (torch.float64, torch.float32):
        try:
            return observe(subject.resolved, subject.recipe, seed=subject.seed, mode=mode, dtype=dtype), dtype
        except Exception as error:
            if dtype == torch.float32 or NO_DERIVATIVE.search(str(error)):
                raise
    raise AssertionError


def rounded(subject: Subject, mode: Mode, wide: torch.dtype, dtype: torch.dtype) -> Observation | None:
    """The same with every result rounded to the digits of `dtype`; None if it raises then."""
    try:
        with Rounding(dtype):
            return observe(subject.resolved, subject.recipe, seed=subject.seed, mode=mode, dtype=wide)
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class Traced:
    """Which operations of a call draw random numbers, and at which ones values jump."""

    random: list[str]
    steps: list[str]


def traced(subject: Subject, mode: Mode) -> Traced:
    """Raises what the call raises."""
    trace = PrecisionTrace()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with trace:
                return call(*args, **kwargs)

        return run

    seen = observe(subject.resolved, subject.recipe, seed=subject.seed, mode=mode, wrap=watched)
    return Traced(sorted(trace.narrow.random) + (["random"] if seen.python_random else []), sorted(trace.narrow.steps))


def error_rows(
    narrow: Observation, wide: Observation, yardstick: Observation | None, dtype: torch.dtype, given: str
) -> list[Row]:
    """One row for outputs and one for gradients, each with its worst tensor next to the yardstick."""
    rows = []
    for what in ("output", "gradient"):
        row = Row(str(dtype).removeprefix("torch."), given, what)
        scale = wide.gradient_norm() if what == "gradient" else 0.0
        worst = -1.0
        for name, true in wide.values.items():
            found = narrow.values.get(name)
            if not name.startswith(what) or found is None or not true.is_floating_point() or found.shape != true.shape:
                continue
            if lost(found, true):
                row.not_finite.append(name)
                continue
            error = relative(found, true, scale)
            alone = _alone(yardstick, name, true, scale)
            if error / max(alone, torch.finfo(dtype).eps) > worst:
                worst = error / max(alone, torch.finfo(dtype).eps)
                row.name, row.error, row.rounding = name, error, alone
        if worst >= 0 or row.not_finite:
            rows.append(row)
    return rows


def _alone(yardstick: Observation | None, name: str, true: torch.Tensor, scale: float) -> float:
    value = None if yardstick is None else yardstick.values.get(name)
    if value is None or value.shape != true.shape or bool((value.isfinite() != true.isfinite()).any()):
        return math.inf  # rounding alone changes what it is: nothing can be said of sizes
    return relative(value, true, scale)


def relative(found: torch.Tensor, true: torch.Tensor, scale: float) -> float:
    """The error in the norm of the true values, which are finite where the others are."""
    if not true.numel():
        return 0.0
    a, b = found.to(torch.float64), true.to(torch.float64)
    finite = a.isfinite() & b.isfinite()
    difference = norm(torch.where(finite, a - b, 0.0))
    size = max(norm(torch.where(finite, b, 0.0)), FLOOR * scale)
    return difference / size if size > 0 else (0.0 if difference == 0 else math.inf)


def lost(found: torch.Tensor, true: torch.Tensor) -> bool:
    """Whether something is not finite that is, and has room in float16."""
    return bool((~found.isfinite() & true.isfinite() & (true.abs() <= _ROOM)).any())


def fits(value: torch.Tensor) -> bool:
    """Whether all of it has room in float16."""
    return bool((value.isfinite() & (value.abs() <= _ROOM)).all())
