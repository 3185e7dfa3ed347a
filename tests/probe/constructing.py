"""Building a module as the search for a harness does: one constructor after the other, each told of its failure."""

from __future__ import annotations

import torch
from gradproof_probe.harness.constructors import Candidate, Constructors
from gradproof_probe.harness.recipe import ExpressionError, construct
from gradproof_probe.importing import Resolved


def constructed(resolved: Resolved, *, tries: int) -> tuple[torch.nn.Module, Candidate, int]:
    """The module, what it was built with, and in how many tries."""
    constructors = Constructors.of(resolved)
    last: BaseException | None = None
    for count in range(1, tries + 1):
        candidate = constructors.take()
        if candidate is None:
            break
        try:
            made = construct(resolved, candidate.expression, seed=0)
        except ExpressionError as error:
            last = error.cause
            constructors.failed(candidate, error.cause)
            continue
        assert made is not None
        return made, candidate, count
    raise AssertionError(f"{resolved.target.qualname} was not constructed: {last!r}")
