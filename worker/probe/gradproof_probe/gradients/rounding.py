"""A float64 gradient that carries only the digits of a narrower type: something in backward was cast and cast back.

No comparison with differences can see it, they are no better than 1e-10 themselves; two things can: values that are all
exactly representable in the narrower type while the right ones aren't, and the cast itself, seen while backward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.gradients.subject import Pull, Subject

NARROW: Final = (torch.bfloat16, torch.float16, torch.float32)
# Fewer values may be exact by chance or because they are simple numbers.
FEWEST: Final = 4
# Relative to the largest: what float64 sums in another order never reach, and a rounding to float32 always does.
UNEXPLAINED: Final = 2e-10


def rounded_to(subject: Subject, pull: Pull, reference: Sequence[torch.Tensor | None]) -> tuple[str, str, float] | None:
    """(name of the variable, the narrower type, relative error); None if nothing was rounded."""
    suspicious = False
    for name, found, true in zip(subject.names, pull.gradients, reference, strict=True):
        if found is None or true is None or found.dtype != torch.float64 or found.shape != true.shape:
            continue
        moving = true != 0
        if int(moving.sum()) < FEWEST:
            continue
        error = float((found - true).abs().max()) / float(true.abs().max())
        if error == 0:
            continue
        suspicious = suspicious or error > UNEXPLAINED
        for dtype in NARROW:
            if _exact(found[moving], dtype) and not _exact(true[moving], dtype):
                return name, str(dtype).removeprefix("torch."), error
    return _seen(subject, pull, reference) if suspicious else None


def _exact(values: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((values.to(dtype).to(torch.float64) == values).all())


def _seen(subject: Subject, pull: Pull, reference: Sequence[torch.Tensor | None]) -> tuple[str, str, float] | None:
    """A cast to a narrower type while backward runs."""
    leaves = subject.leaves(subject.make(ORDINARY), None)
    try:
        outputs = subject.forward(subject.given(leaves, ORDINARY))
        with PrecisionTrace() as trace:
            subject.pull_from(outputs, leaves, ORDINARY)
    except (ForwardError, BackwardError):
        return None
    if trace.narrow.dtype is None:
        return None
    errors = [
        (float((found - true).abs().max()) / float(true.abs().max()), name)
        for name, found, true in zip(subject.names, pull.gradients, reference, strict=True)
        if found is not None and true is not None and found.numel() and bool(true.any())
    ]
    error, name = max(errors)
    return name, str(trace.narrow.dtype).removeprefix("torch."), error
