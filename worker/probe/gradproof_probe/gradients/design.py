"""Gradients that differ from the derivative on purpose: straight-through, surrogate, reversal, scaling.

A difference that its author meant is recognised by what it does (the output is locally constant there, or the forward
is the identity) or by what the Function is called, and is reported with that label, never as a fault.
"""

from __future__ import annotations

import re

import torch

from gradproof_probe.gradients.faults import Constancy, Fault
from gradproof_probe.gradients.functions import BY_DESIGN, STEPLIKE, documented
from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.gradients.subject import Subject


def meant(fault: Fault, constant: Constancy, function: type | None, subject: Subject) -> str | None:
    """Why the difference seems to be meant, in words; None if nothing says so."""
    word = _word(function, BY_DESIGN)
    step = _word(function, STEPLIKE)
    if constant == "all":
        return "the output is locally constant: a straight-through or surrogate gradient"
    if constant == "some" and (word or step):
        return f"it differs only where the output is locally constant, and it is called {word or step!r}"
    if function is not None and _identity(fault, subject):
        return "the forward is the identity: the Function exists to change the gradient"
    if word is not None:
        return f"its name or documentation speaks of {word!r}"
    return None


def _identity(fault: Fault, subject: Subject) -> bool:
    """Whether an output is one of the inputs unchanged."""
    made = subject.make(ORDINARY)
    return any(
        output.shape == made[position].shape and torch.equal(output.detach(), made[position])
        for output in fault.pull.outputs
        for position in subject.positions
    )


def _word(function: type | None, words: re.Pattern[str]) -> str | None:
    """In the name or the documentation; the source speaks of too many things."""
    if function is None:
        return None
    for text in documented(function):
        match = words.search(text)
        if match:
            return match[0].strip(" _.,:;()")
    return None
