"""The code generator. It rounds in other places than eager, so it is judged against a float64 reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling import kept_kernels
from gradproof_probe.compiling.bisecting import guilty_pass
from gradproof_probe.compiling.conditioning import RATIO, is_ill_conditioned
from gradproof_probe.compiling.explaining import concerning, first_line_not_finite, located
from gradproof_probe.compiling.running import Backend, backend_named, observed, observed_compiled
from gradproof_probe.compiling.suspected import failing, settled_by_inductor, wire
from gradproof_probe.equivalence.observation import (
    FLOOR,
    ROUNDING,
    UNIT,
    Mode,
    Observation,
    norm,
    relative_error,
)
from gradproof_probe.equivalence.units import Share, Units
from gradproof_probe.gradients.precision import STEPS
from gradproof_probe.importing import describe_error

_MODE: Final[Mode] = "train"
# Of the elements of an output: where as many as this jump, the inputs lie on the edges of a step; a tie among random
# numbers moves one in a million.
_ON_EDGES: Final = 0.02
_LOW: Final = (torch.float16, torch.bfloat16)  # compiled code computes these in float32
# For finding out where a difference begins, of what a batch has for inductor. Measured: a line in a graph of 4
# operations takes 1 s, one in a graph of 25 takes 10 s, and the pass 10 s more.
_LOCATING_S: Final = 25.0
# Of the largest gradient, 16 units: a gradient that is nought but for rounding, as that of what stands before a batch
# norm, is other noise in compiled code (LeViT: 6 units, where eager sums in double and has none).
_NOISE: Final = 2.0**-19
# Of the root of how many terms are summed: 0.5 measured on networks with batch norm.
_SUMMED: Final = 1.5
# Rounds down inside: `torch.div(..., rounding_mode="floor")`, `//`.
_DIVIDING: Final = frozenset({"div", "floordiv", "floor_divide", "true_divide"})


def inductor_stage(context: CheckContext, until: float, patched: Backend | None = None) -> Answer:
    """`until`: monotonic seconds, for finding out where a difference begins. `patched`: what stands in for inductor."""
    answer, plain, compiled = _compared(context, until, patched)
    counted = {key: value for key, value in answer.evidence.items() if key == "units_apart"}
    is_open = answer.cause == kept_kernels.DIFFERS_WARM
    settled = [] if is_open else settled_by_inductor(context, answer, plain, compiled)
    if answer.verdict == "pass" and (found := failing(settled)) is not None:
        answer = _rests_on_kept(found.text) or found
    if answer.cause != kept_kernels.DIFFERS_WARM:
        answer.evidence["hypotheses"] = wire(settled)
    answer.evidence |= counted  # of both ways, whatever became of the answer
    answer.evidence["inductor_cache"] = kept_kernels.counted()
    return answer


def _compared(
    context: CheckContext, until: float, patched: Backend | None
) -> tuple[Answer, Observation | None, Observation | None]:
    from torch._inductor import config

    config.fallback_random = True  # draws eager's random numbers (checks facts §3)
    config.compile_threads = 1
    plain = observed(context, _MODE, calls=1)
    try:
        reference = observed(context, _MODE, calls=1, dtype=torch.float64)
    except Exception as error:
        said = f"inductor not judged: no float64 reference ({describe_error(error, 150)})"
        return Answer("skipped", "", said), None, None
    try:
        compiled = observed_compiled(context, _MODE, patched or backend_named("inductor"), calls=1)
    except Exception as error:
        said = f"inductor not judged: compiling raised {describe_error(error, 200)}"
        cause = kept_kernels.DIFFERS_WARM if kept_kernels.is_warm() else ""
        return Answer("skipped", cause, said), None, None
    answer, share = _judged(context, until, (plain, compiled, reference), patched)
    units = Units("compiled (inductor)", "eager")
    units.add(plain, compiled, reference, share)
    answer.evidence["units_apart"] = units.to_evidence()
    return answer, plain, compiled


def _judged(
    context: CheckContext,
    until: float,
    found: tuple[Observation, Observation, Observation],
    patched: Backend | None,
) -> tuple[Answer, Share]:
    """And how far each tensor may be from the reference."""
    plain, compiled, reference = found
    lost = _not_finite_in_eager(plain, compiled, reference)
    if lost is not None:
        answer = _rests_on_kept(f"{lost} is finite compiled alone") or _lost_in_eager(context, lost, plain)
        return answer, _without_bound
    missing = [name for name in plain.values if name in reference.values and name not in compiled.values]
    if missing:
        text = f"inductor gives no {missing[0]}"
        return _explained(context, until, text, (plain, compiled), 1.0, patched), _without_bound
    errors = errors_of(plain, compiled, reference)
    worst, name, of_plain, of_compiled = worst_of(errors)
    ratio = RATIO if worst <= RATIO else allowed_ratio(context, plain)
    share = _allowed(errors, ratio, reference)
    if worst <= ratio:
        numbers = f"{worst:.2f} times eager's error, at {name}" if name else "no difference"
        return Answer("pass", "equal", f"inductor agrees ({numbers})"), share
    text = f"inductor is off by {of_compiled:.2e} at {name}, eager by {of_plain:.2e} (both against float64)"
    limit = (max(of_plain, UNIT) * min(of_compiled, 1.0)) ** 0.5
    return _explained(context, until, text, (plain, compiled), limit, patched), share


def _without_bound(_name: str) -> float:
    return float("inf")


def _allowed(errors: Mapping[str, _Error], ratio: float, reference: Observation) -> Share:
    """What is not among the errors is noise, or no result that is judged."""
    noise = _NOISE * reference.gradient_norm()

    def share(name: str) -> float:
        if name in errors:
            return ratio * errors[name].unit
        expected = reference.values[name]
        is_noise = name.startswith("gradient") and expected.is_floating_point() and noise > 0
        return noise / max(norm(expected), FLOOR * noise / _NOISE) if is_noise else float("inf")

    return share


def _rests_on_kept(text: str) -> Answer | None:
    """That something is amiss was found with code that an earlier run may have compiled, or tampered with."""
    if not kept_kernels.were_used():
        return None
    return Answer("inconclusive", kept_kernels.DIFFERS_WARM, f"with kernels kept from an earlier run, {text}")


def _not_finite_in_eager(plain: Observation, compiled: Observation, reference: Observation) -> str | None:
    """The output that is infinite or NaN in eager alone: neither in float64 nor compiled."""
    for name, value in plain.values.items():
        others = [other.values.get(name) for other in (compiled, reference)]
        if name.startswith("output") and value.dtype in _LOW:
            finite = [other.isfinite() for other in others if other is not None and other.shape == value.shape]
            if len(finite) == len(others) and bool((~value.isfinite() & finite[0] & finite[1]).any()):
                return name
    return None


def _lost_in_eager(context: CheckContext, name: str, plain: Observation) -> Answer:
    dtype = str(plain.values[name].dtype).removeprefix("torch.")
    text = (
        f"{name} is not finite in eager execution, in {dtype}, and finite compiled as well as in float64: a number on "
        f"the way is beyond what {dtype} can hold, and compiled code keeps it in a wider type"
    )
    return Answer("fail", "eager_not_finite", text, first_line_not_finite(context, _MODE))


def allowed_ratio(context: CheckContext, plain: Observation) -> float:
    """How many times as far off as eager rounding alone may bring it.

    What is summed in float32, one number after the other, is off by about half the root of their number. Eager sums
    some things in double (batch norm) or in a cascade: of 1,024 terms, inductor is 16 times as far off.
    """
    largest = _Largest()
    observed(context, _MODE, calls=1, wrap=largest.around)
    sizes = [value.numel() for value in plain.values.values() if value.is_floating_point() and value.numel()]
    return max(RATIO, _SUMMED * (largest.size / min(sizes, default=1)) ** 0.5)


class _Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor of a call has: no element of a gradient is a sum of more terms."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(item.numel() for item in tree_leaves(result) if isinstance(item, torch.Tensor))])
        return result


def _distance(value: torch.Tensor, expected: torch.Tensor) -> float:
    return norm(value.to(torch.float64) - expected) if value.shape == expected.shape else float("inf")


@dataclass(frozen=True, slots=True)
class _Error:
    """Of one tensor, against float64. `unit`: eager's error, and no less than a unit of its type."""

    of_plain: float
    of_compiled: float
    unit: float


def errors_of(plain: Observation, compiled: Observation, reference: Observation) -> dict[str, _Error]:
    """How far off both are, by the name of the tensor, without gradients that are nought but for rounding."""
    found: dict[str, _Error] = {}
    largest = reference.gradient_norm()
    for name, expected in reference.values.items():
        if not expected.is_floating_point() or name not in plain.values:
            continue
        floor = largest if name.startswith("gradient") else 0.0
        noise = _NOISE * floor
        if floor and norm(expected) <= noise and _distance(compiled.values[name], expected) <= noise:
            continue
        own = plain.values[name]
        of_plain = relative_error(own, expected, floor)
        unit = max(of_plain, float(torch.finfo(own.dtype).eps) if own.is_floating_point() else UNIT)
        found[name] = _Error(of_plain, relative_error(compiled.values[name], expected, floor), unit)
    return found


def worst_of(errors: Mapping[str, _Error]) -> tuple[float, str, float, float]:
    """How many times as far off as eager, where, and how far both are."""
    found = (0.0, "", 0.0, 0.0)
    for name, error in errors.items():
        if error.of_compiled / error.unit > found[0]:
            found = (error.of_compiled / error.unit, name, error.of_plain, error.of_compiled)
    return found


def _explained(
    context: CheckContext,
    until: float,
    text: str,
    found: tuple[Observation, Observation],
    limit: float,
    patched: Backend | None,
) -> Answer:
    if (warm := _rests_on_kept(text)) is not None:
        return warm
    plain, compiled = found
    until = min(until, time.monotonic() + _LOCATING_S)
    rounding = is_ill_conditioned(context, _MODE, plain, compiled, calls=1)
    if rounding and _jumping(plain, compiled) < _ON_EDGES:
        return Answer("pass", "equal", f"{text}, as eager is where inputs are off by one unit")
    backend = patched or backend_named("inductor")
    answer = located(context, _MODE, backend, text, limit=max(limit, 2 * ROUNDING), until=until)
    operation = answer.numbers.get("operation", "")
    if rounding and (operation in STEPS or operation in _DIVIDING):
        answer.cause = "step_at_edge"
        answer.text = (
            f"{text}: inputs lie on the edges of the steps that `{operation}` makes, where one unit of rounding "
            "decides; compiled code rounds otherwise, so compute the step from something exact"
        )
    elif answer.cause == "compiler_fault":
        if patched is None and not rounding and time.monotonic() < until:
            answer.numbers |= guilty_pass(context, _MODE, max(limit, 2 * ROUNDING), until)
        if "pass" in answer.numbers:
            words = dict.fromkeys((str(answer.numbers["pass"]), str(answer.numbers["applied"])))
            answer.text += f" (inductor's {': '.join(words)})"
    if answer.cause == "compiler_fault" and rounding:
        answer.cause = "inductor_differs"
    return concerning(context, answer)


def _jumping(plain: Observation, compiled: Observation) -> float:
    """The largest share of an output's elements that is another, among elements of which others are the same."""
    worst = 0.0
    for name, value in plain.values.items():
        other = compiled.values.get(name)
        if not name.startswith("output") or other is None or value.shape != other.shape or not value.numel():
            continue
        scale = float(value.abs().max()) if value.is_floating_point() else 0.0
        off = (value - other).abs() > ROUNDING * scale if scale else value != other
        share = float(off.double().mean())
        worst = max(worst, share if share < 1.0 else 0.0)
    return worst
