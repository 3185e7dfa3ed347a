"""The gradient checks that are compared, each as one question: does it object to this Function at these inputs?

gradcheck gets what its documentation asks for: float64, gradients wanted. Its fullest form (second order at
non-contiguous gradients, vmap) can end the process, so it runs in a fork.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from gradproof_probe import check_gradients

from benchmarks.mutants.draws import Inputs
from benchmarks.mutants.register import Function, Right
from benchmarks.mutants.triggers import leaves

LONGEST_S: Final = 60.0  # one check in a fork; slow gradcheck at 1,000 elements needs 0.2 s


@dataclass(frozen=True, slots=True)
class Answer:
    """`verdict`: a word of the check's own. `causes`: of every failure, the first one first."""

    objected: bool
    verdict: str
    reason: str = ""
    causes: tuple[str, ...] = ()
    located: bool = False
    seconds: float = 0.0


Check = Callable[[Right, Function, Inputs], Answer]


def ours(right: Right, function: Function, inputs: Inputs) -> Answer:  # noqa: ARG001 -- it is told nothing
    """`check_gradients`: only `fail` objects; every other verdict doesn't."""
    report = check_gradients(function, inputs)
    causes = tuple(failure.cause for failure in report.failures)
    located = any(failure.worst is not None for failure in report.failures)
    texts = "; ".join(failure.text for failure in report.failures)
    return Answer(report.verdict == "fail", report.verdict, texts or report.reason, causes, located)


def _callable(right: Right, function: Any) -> Callable[..., Any]:
    if not right.in_place:
        apply: Callable[..., Any] = function.apply
        return apply
    return lambda *args: function.apply(*(item.clone() if isinstance(item, torch.Tensor) else item for item in args))


def _as_documented(inputs: Inputs) -> Inputs:
    """float64, and if nothing asks for a gradient, everything does."""
    flagged = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    wide = tuple(
        value.detach().to(torch.complex128).requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor) and value.is_complex()
        else value
        for value in inputs
    )
    return tuple(leaves(wide, torch.float64, None if flagged else range(len(inputs))))


def _asked(question: Callable[[], Any]) -> Answer:
    try:
        question()
    except Exception as error:  # noqa: BLE001 -- gradcheck raises what the Function raises
        return Answer(objected=True, verdict=type(error).__name__, reason=str(error)[:300])
    return Answer(objected=False, verdict="pass")


def slow(right: Right, function: Function, inputs: Inputs) -> Answer:
    """`torch.autograd.gradcheck` with its defaults."""
    return _asked(lambda: torch.autograd.gradcheck(_callable(right, function), _as_documented(inputs)))


def fast(right: Right, function: Function, inputs: Inputs) -> Answer:
    """`torch.autograd.gradcheck(fast_mode=True)`."""
    return _asked(lambda: torch.autograd.gradcheck(_callable(right, function), _as_documented(inputs), fast_mode=True))


def fullest(right: Right, function: Function, inputs: Inputs) -> Answer:
    """Slow gradcheck with batched gradients and dtypes, then gradgradcheck with non-contiguous gradients."""
    return in_fork(lambda: fullest_here(right, function, inputs))


def fullest_here(right: Right, function: Function, inputs: Inputs) -> Answer:
    """The same in this process, which it may end."""

    def everything() -> None:
        called, given = _callable(right, function), _as_documented(inputs)
        torch.autograd.gradcheck(called, given, check_batched_grad=True, check_grad_dtypes=True)
        if not right.once:
            torch.autograd.gradgradcheck(called, given, gen_non_contig_grad_outputs=True)

    return _asked(everything)


CHECKS: Final[dict[str, Check]] = {"gradproof": ours, "slow": slow, "fast": fast, "max": fullest}


def answer(check: str, right: Right, function: Function, inputs: Inputs) -> Answer:
    """What this check says, and how long it took. An exception out of ours is its own fault: the verdict `raised`."""
    start = time.perf_counter()
    try:
        found = CHECKS[check](right, function, inputs)
    except Exception as error:  # noqa: BLE001
        found = Answer(objected=False, verdict="raised", reason=f"{type(error).__name__}: {str(error)[:300]}")
    seconds = time.perf_counter() - start
    return Answer(found.objected, found.verdict, found.reason, found.causes, found.located, seconds)


def in_fork(question: Callable[[], Answer]) -> Answer:
    """Asked in a child process. A child that dies has been stopped by the fault: that is an objection too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, pickle.dumps(question()))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], LONGEST_S)
        if not ready:
            os.kill(child, signal.SIGKILL)
        written = os.read(reader, 1 << 16) if ready else b""
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if written:
        found: Answer = pickle.loads(written)
        return found
    return Answer(ready != [], "crashed" if ready else "time limit", f"exit status {status}")
