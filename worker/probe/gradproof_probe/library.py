"""The gradient battery for a user's own test suite: in this process, no files, no forks.

from gradproof_probe import check_gradients

check_gradients(MyFunction, (torch.randn(3, 4),)).raise_for_failure()
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.checks.base import Verdict
from gradproof_probe.gradients.clues import Clues, clues_from_hints
from gradproof_probe.gradients.examination import Examination, Examiner
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.explanation import Explainer
from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.gradients.whole_calls import CallableCall, FunctionCall, inner_fault
from gradproof_probe.repro import library_repro
from gradproof_probe.trees import transform

DEFAULT_BUDGET_S: Final = 30.0


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
    script: Callable[[], str | None] = field(default=lambda: None, repr=False, compare=False)

    def repro(self) -> str | None:
        """A file that shows the failure by itself, with torch and without Gradproof; None if there is none to show.

        Written where `fn` is a Function that another process can import.
        """
        return self.script()

    def raise_for_failure(self) -> None:
        """Raise `GradientError` if the verdict is `fail`; everything else is no proof of a fault."""
        __tracebackhide__ = True  # pytest then points at the caller's line
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
    hints: Iterable[Any] | None = None,
) -> GradientReport:
    """Is the gradient of `fn` the derivative of what it computes: at `inputs`, and in what else a caller may do?

    `fn`: a callable, a module (it is copied, and its parameters are checked too) or an `autograd.Function` subclass.
    `inputs`: its positional arguments; floating tensors of any shape and dtype are promoted to float64 and
    differentiated (those marked `requires_grad`, if any is), everything else is handed on. `hints`: numbers that `fn`
    compares something with, or conditions as source (`"x.numel() > 65536"`); they are tried besides those that its
    own source gives. `budget_s`: after so many seconds no new step is begun.

    Never raises for a fault of `fn`: that is the report. Global generators are left as they were.
    """
    deadline = time.monotonic() + (DEFAULT_BUDGET_S if budget_s is None else budget_s)
    clues = clues_from_hints(hints) if hints is not None else None
    with torch.random.fork_rng(devices=[]), _other_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the code says of inputs that only we give it
        found = _examine(fn, list(inputs), seed, deadline, clues)
    return _report(found, lambda: _script(fn, inputs, seed, found))


@contextmanager
def _other_generators() -> Iterator[None]:
    """Python's generator and NumPy's are put back."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy is not None:
            numpy.random.set_state(before[1])


def _script(fn: Any, inputs: Sequence[Any], seed: int, found: Examination) -> str | None:
    """A file that shows the fault without Gradproof, where another process can import the Function."""
    if found.verdict != "fail" or not (inspect.isclass(fn) and issubclass(fn, torch.autograd.Function)):
        return None
    return library_repro(
        fn,
        inputs,
        seed=seed,
        summary=found.text,
        situation=found.situation or ORDINARY,
        cause=found.cause,
        worst=found.worst,
        second_order=found.cause == "wrong_second_order",
        single=found.single,
    )


def _examine(fn: Any, inputs: list[Any], seed: int, deadline: float, clues: Clues | None) -> Examination:
    root = Path("/")  # any file may be the caller's; torch's and the probe's own are left out where lines are named
    if inspect.isclass(fn) and issubclass(fn, torch.autograd.Function):
        return FunctionCall(fn, inputs, source_root=root, seed=seed, deadline=deadline, clues=clues).examine()

    def make(precision: torch.dtype | None) -> Experiment:
        module = copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else None
        args = [transform(value, lambda tensor: tensor.detach().clone()) for value in inputs]
        return Experiment(module if module is not None else fn, args, {}, module, seed=seed, precision=precision)

    found = Examiner(make, source_root=root, seed=seed, deadline=deadline).examine()
    found = Explainer(make, source_root=root, seed=seed, deadline=deadline).explain(found)
    if found.verdict not in ("pass", "inconclusive"):
        return found
    return _inside(fn, make, inputs, found, (root, seed, deadline, clues))


def _inside(
    fn: Any,
    make: Callable[[torch.dtype | None], Experiment],
    inputs: list[Any],
    found: Examination,
    given: tuple[Path, int, float, Clues | None],
) -> Examination:
    """What the custom Functions that it goes through do in other situations than this one call."""
    root, seed, deadline, clues = given
    if not isinstance(fn, torch.nn.Module):
        call = CallableCall(fn, inputs, source_root=root, seed=seed, deadline=deadline, clues=clues)
        functions = [item.function for item in call.functions()]
        whole = call.examine(functions) if functions or clues is not None else None
        # What `Explainer` found to be meant inside isn't a fault of the whole.
        if whole is not None and not (whole.mismatch and found.mismatch):
            return whole
        if not functions:
            return found
    fault = inner_fault(make, source_root=root, seed=seed, deadline=deadline, scope="all")
    return found if fault is None else fault


def _report(found: Examination, script: Callable[[], str | None]) -> GradientReport:
    check = "gradgradcheck" if found.cause == "wrong_second_order" else "gradcheck"
    failures = (
        (Failure(check, found.cause, found.text, dict(found.numbers), found.worst),) if found.verdict == "fail" else ()
    )
    return GradientReport(found.verdict, found.text, failures, dict(found.evidence), script)
