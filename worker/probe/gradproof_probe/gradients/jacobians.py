"""The two Jacobians of a small case, as numbers for a picture: what backward returns, and what is right.

Row by row: each output element alone gets a cotangent of 1. Only where the fault shows for such cotangents; a layout
that is misread, or a sequence of calls, has no picture.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.faults import Fault
from gradproof_probe.gradients.situations import COMPUTED
from gradproof_probe.gradients.subject import NotApplicableError, Subject, plain

SMALL: Final = 32  # rows and columns that a picture can show


def jacobians(subject: Subject, fault: Fault) -> dict[str, Any] | None:
    """Of the first output by the variable that is wrong; None where it is too large, or can't be shown."""
    if fault.ruled is None or not set(fault.situation.changed()) <= set(COMPUTED) or subject.seen_through is None:
        return None
    ordinal = fault.ruled.ordinal
    leaf = fault.pull.leaves[ordinal]
    output = fault.pull.outputs[0]
    if leaf.numel() > SMALL or output.numel() > SMALL or leaf.is_complex() or output.is_complex():
        return None
    rows: dict[str, list[list[float]]] = {"analytic": [], "reference": []}
    situation = plain(fault.situation)
    try:
        for element in range(output.numel()):
            cotangents = [torch.zeros_like(item).detach().contiguous() for item in fault.pull.outputs]
            cotangents[0].view(-1)[element] = 1
            returned = subject.pull(situation, cotangents).gradients[ordinal]
            right = subject.reference(situation, cotangents)[ordinal]
            rows["analytic"].append(_row(returned, leaf))
            rows["reference"].append(_row(right, leaf))
    except (ForwardError, BackwardError, NotApplicableError, RuntimeError):
        return None
    return {"variable": subject.names[ordinal], "output": "output 0", **rows}


def _row(gradient: torch.Tensor | None, leaf: torch.Tensor) -> list[float]:
    return [0.0] * leaf.numel() if gradient is None else gradient.reshape(-1).tolist()
