"""The gradient battery for a user's own test suite: in this process, no files, no forks.

from gradproof_probe import check_gradients

check_gradients(MyFunction, (torch.randn(3, 4),)).raise_for_failure()
"""

from __future__ import annotations

import copy
import inspect
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.checks.base import Verdict
from gradproof_probe.gradients.examination import Examination, Examiner
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.explanation import Explainer
from gradproof_probe.trees import transform

DEFAULT_BUDGET_S: Final = 30.0
MOST_HINTS: Final = 8


class GradientError(AssertionError):
    """The gradient is wrong; the message says how. An AssertionError, so that test runners show it as a failure."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One fault. `worst` is the worst coordinate with both values, where single coordinates were compared."""

    check: str
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    worst: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GradientReport:
    """`reason` says in a sentence how the verdict came about; `evidence` holds the probes."""

    verdict: Verdict
    reason: str
    failures: tuple[Failure, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    def raise_for_failure(self) -> None:
        """Raise `GradientError` if the verdict is `fail`; everything else is no proof of a fault."""
        if self.verdict != "fail":
            return
        lines = []
        for failure in self.failures:
            lines.append(f"{failure.check}: {failure.cause}: {failure.text}")
            if failure.worst is not None:
                lines.append(
                    "  worst at {variable}{index}: autograd {analytic:.6g}, differences {numeric:.6g} "
                    "(error {error_estimate:.1e})".format(**failure.worst)
                )
        raise GradientError("\n".join(lines))


def check_gradients(
    fn: Callable[..., Any] | type[torch.autograd.Function],
    inputs: Sequence[Any],
    *,
    budget_s: float | None = None,
    seed: int = 0,
    hints: Iterable[float] | None = None,
) -> GradientReport:
    """Compare the gradient of `fn` at `inputs` with the derivative of what it computes.

    `fn`: a callable, a module (it is copied, and its parameters are checked too) or an `autograd.Function` subclass.
    `inputs`: its positional arguments; floating tensors of any shape and dtype are promoted to float64 and
    differentiated, everything else is handed on. `hints`: values that `fn` compares its input with; the first
    floating input is then also placed on both sides of each. `budget_s`: after so many seconds no new step is begun.

    Never raises for a fault of `fn`: that is the report. Global generators are left as they were.
    """
    deadline = time.monotonic() + (DEFAULT_BUDGET_S if budget_s is None else budget_s)
    before = random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            examinations = [
                _examine(fn, list(point), seed, deadline)
                for point in _points(list(inputs), list(hints or ())[:MOST_HINTS])
            ]
        finally:
            random.setstate(before)
    return _report(examinations)


def _points(inputs: list[Any], hints: list[float]) -> Iterable[list[Any]]:
    yield inputs
    first = next((i for i, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
    if first is None:
        return
    for hint in hints:
        value = inputs[first].detach().to(torch.float64)
        # Half of the elements below, half above: alternating, at least a tenth away, so that no step crosses the value.
        side = torch.where(torch.arange(value.numel()).reshape(value.shape) % 2 == 0, 1.0, -1.0)
        yield [*inputs[:first], (hint + side * (0.1 + value.abs())).to(inputs[first].dtype), *inputs[first + 1 :]]


def _examine(fn: Any, inputs: list[Any], seed: int, deadline: float) -> Examination:
    function: Any = fn if inspect.isclass(fn) and issubclass(fn, torch.autograd.Function) else None

    def make(precision: torch.dtype | None) -> Experiment:
        module = copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else None
        call = function.apply if function is not None else (module if module is not None else fn)
        args = [transform(value, lambda tensor: tensor.detach().clone()) for value in inputs]
        return Experiment(call, args, {}, module, seed=seed, precision=precision)

    root = Path("/")  # any file may be the caller's; torch's and the probe's own are left out where lines are named
    found = Examiner(make, source_root=root, seed=seed, deadline=deadline, function=function).examine()
    if function is not None:
        return found
    return Explainer(make, source_root=root, seed=seed, deadline=deadline).explain(found)


def _report(examinations: list[Examination]) -> GradientReport:
    order: tuple[Verdict, ...] = ("fail", "error", "pass", "inconclusive")
    decisive = min(examinations, key=lambda item: order.index(item.verdict))
    failures = tuple(
        Failure("gradcheck", item.cause, item.text, dict(item.numbers), item.worst)
        for item in examinations
        if item.verdict == "fail"
    )
    return GradientReport(decisive.verdict, decisive.text, failures, dict(decisive.evidence))
