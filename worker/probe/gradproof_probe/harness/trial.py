"""Run a target once, forward and backward, and say how far it came. Runs in the harness child."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Literal

import torch

from gradproof_probe.harness.recipe import Built
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors, transform

Stage = Literal["ok", "fault", "no_gradient", "not_finite", "forward", "backward", "too_slow"]

# What no other input could cure: the code itself breaks a rule of autograd. The harness is right then, and the
# gradient check shows the fault.
DEFINITE_FAULTS: Final = re.compile(
    r"modified by an inplace operation|leaf Variable that requires grad|is a view and is being modified inplace|"
    r"view of a leaf Variable|save_for_backward can only save|returned an incorrect number of gradients|"
    r"expected Variable or None|backward through the graph a second time"
)
# Errors in backward that say nothing about the submitted code: torch itself lacks the derivative.
NO_DERIVATIVE: Final = re.compile(
    r"derivative for .* is not implemented|not implemented for|not differentiable", re.IGNORECASE
)


class TrialTimeoutError(Exception):
    """One trial took longer than any small input should."""


@dataclass(slots=True)
class Trial:
    """How far a call came. `outputs` are the differentiable ones, `gradients` those of the inputs and parameters.

    `finite`: whether the outputs are, whatever the gradients are. `args` and `kwargs` are the objects that the call
    got, for looking them up in the frames of its error.
    """

    stage: Stage
    error: BaseException | None = None
    progress: int = 0
    outputs: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    finite: bool = True
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


class _Progress(torch.overrides.TorchFunctionMode):
    """Counts torch calls: of two failing trials the one that came further is the better start for a repair."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TrialTimeoutError` in Python code that runs longer; the child's own deadline covers the rest.

    Where other processes took the time, the limit is moved, to twice as long at most.
    """
    started, used = time.monotonic(), time.process_time()

    def ring(_number: int, _frame: FrameType | None) -> None:
        waited = time.monotonic() - started
        if waited < 1.5 * seconds and time.process_time() - used < 0.5 * seconds:
            signal.setitimer(signal.ITIMER_REAL, 2 * seconds - waited)
            return
        raise TrialTimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(built: Built, *, seed: int, seconds: float) -> Trial:
    """Forward, then backward with a random cotangent of every differentiable output."""
    progress = _Progress()

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.detach().clone().requires_grad_()
        return tensor.clone()

    leaves = [transform(value, leaf) for value in built.args]
    named = {name: transform(value, leaf) for name, value in built.kwargs.items()}
    # Clones, so that a forward that writes to its input doesn't meet a leaf.
    args = [transform(value, torch.Tensor.clone) for value in leaves]
    kwargs = {name: transform(value, torch.Tensor.clone) for name, value in named.items()}
    reseed(seed)
    try:
        with time_limit(seconds), progress:
            output = built.call(*args, **kwargs)
    except TrialTimeoutError as error:
        return Trial("too_slow", error, progress.calls)
    except Exception as error:
        definite = DEFINITE_FAULTS.search(str(error)) is not None
        return Trial("fault" if definite else "forward", error, progress.calls, args=args, kwargs=kwargs)
    outputs = tensors(output)
    finite = all(bool(torch.isfinite(value).all()) for _, value in outputs if value.is_floating_point())
    named_outputs = [
        (path, value)
        for path, value in outputs
        if value.requires_grad and (value.is_floating_point() or value.is_complex())
    ]
    differentiable = [value for _, value in named_outputs]
    if not differentiable:
        return Trial("no_gradient", None, progress.calls)
    wanted = [value for _, value in tensors([leaves, named]) if value.requires_grad]
    if built.instance is not None:
        wanted += [value for value in built.instance.parameters() if value.requires_grad]
    if not wanted:
        return Trial("no_gradient", None, progress.calls)
    try:
        with time_limit(seconds):
            reseed(seed)
            gradients = torch.autograd.grad(
                differentiable, wanted, [torch.randn_like(value) for value in differentiable], allow_unused=True
            )
    except TrialTimeoutError as error:
        return Trial("too_slow", error, progress.calls)
    except Exception as error:
        if NO_DERIVATIVE.search(str(error)):
            return Trial("no_gradient", error, progress.calls)
        definite = DEFINITE_FAULTS.search(str(error)) is not None
        return Trial("fault" if definite else "backward", error, progress.calls, args=args, kwargs=kwargs)
    if all(value is None for value in gradients):
        return Trial("no_gradient", None, progress.calls)
    all_finite = finite and all(bool(torch.isfinite(value).all()) for value in gradients if value is not None)
    shown = [(path, value.detach()) for path, value in named_outputs]
    return Trial("ok" if all_finite else "not_finite", None, progress.calls, shown, list(gradients), finite)
