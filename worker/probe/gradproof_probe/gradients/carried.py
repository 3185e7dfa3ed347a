"""What a call does besides computing: writes to parameters or inputs, answers from memory, gradients by side effect.

Each makes differences see another function than autograd: one that also writes, one that remembers, or one whose
gradients come only with `.backward()`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import InPlaceWrites
from gradproof_probe.gradients.breaks import Breaks
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError, differentiable
from gradproof_probe.gradients.labels import Label, said
from gradproof_probe.gradients.probing import random_like
from gradproof_probe.trees import tensors

Make = Callable[[torch.dtype | None], Experiment]
SAME: Final = 1e-9


def written(experiment: Experiment, source_root: Path) -> Label | None:
    """A parameter or an input whose bytes are others after forward than before. Raises `ForwardError`."""
    experiment.put_back()
    before = [variable.leaf.detach().clone() for variable in experiment.variables]
    writes, breaks = InPlaceWrites(source_root), Breaks(source_root)
    with writes, breaks.watching():
        _, arguments = experiment.run_raw()
    changed = [
        variable
        for variable, value in zip(experiment.variables, before, strict=True)
        if not torch.equal(variable.leaf.detach(), value)
    ]
    given = [variable for variable in experiment.variables if variable.kind == "input"]
    handed = [value for _, value in tensors(arguments) if value.is_floating_point() or value.is_complex()]
    inputs = [
        (variable, value)
        for variable, value in zip(given, handed, strict=False)
        if variable.base.shape == value.shape
        and value.grad_fn is not None
        and type(value.grad_fn).__name__ == "CloneBackward0"
        and not torch.equal(value.detach(), variable.base)
    ]
    places = [writes.line_of(item) for item in (*(v.leaf for v in changed), *(value for _, value in inputs))]
    experiment.put_back()
    if not places:
        return None
    names = [*(variable.name for variable in changed), *(variable.name for variable, _ in inputs)]
    assigned = [item.place for item in breaks.found if item.what == "data"]  # `weight.data = …` is other memory
    place = next((item for item in [*places, *assigned] if item is not None), None)
    what = "parameter" if changed and changed[0].kind == "parameter" else "input"
    return Label(
        "written_in_forward",
        f"forward writes to its {what} {names[0]}{said(place)}: differences see another function than autograd does",
        (f"the bytes of {', '.join(names[:5])} are others after forward than before",),
        place,
    )


def remembered(experiment: Experiment) -> Label | None:
    """Whether the output is the same memory in two calls, though the values that went in were others."""
    experiment.put_back()
    first = differentiable(experiment.run())
    generator = torch.Generator().manual_seed(experiment.seed + 5)
    directions = [random_like(variable.base, generator) for variable in experiment.variables]
    experiment.place(list(directions), 1.0)
    try:
        second = differentiable(experiment.run())
    except ForwardError:
        return None
    finally:
        experiment.put_back()
    ours = {variable.leaf.data_ptr() for variable in experiment.variables}
    for one, other in zip(first, second, strict=False):
        if one.value.data_ptr() == other.value.data_ptr() and one.value.data_ptr() not in ours and one.value.numel():
            where = one.path or "the output"
            return Label(
                "remembered_result",
                "it answers from memory: two calls with other values return the same tensor",
                (f"{where} lies at the same address after a call with other values",),
            )
    return None


def gathered(make: Make, precision: torch.dtype | None) -> Label | None:
    """Whether `.backward()` gives other gradients than `autograd.grad`: code that calls backward in its backward."""
    experiment = make(precision)
    try:
        outputs = differentiable(experiment.run())
        generator = torch.Generator().manual_seed(experiment.seed + 7)
        cotangents = [random_like(output.value, generator) for output in outputs]
        asked = experiment.gradients(outputs, cotangents)
        again = differentiable(experiment.run())
        for variable in experiment.variables:
            variable.leaf.grad = None
        torch.autograd.backward([output.value for output in again], cotangents)
    except (ForwardError, BackwardError, RuntimeError):
        return None
    for variable, one in zip(experiment.variables, asked, strict=True):
        other: Any = variable.leaf.grad
        if other is None:
            continue
        reference = torch.zeros_like(other) if one is None else one
        if float((other - reference).abs().max()) > SAME * max(float(other.abs().max()), 1e-30):
            return Label(
                "gradient_by_side_effect",
                f".backward() gives {variable.name} another gradient than autograd.grad: "
                "it is accumulated by a backward inside",
                (f"{variable.name}.grad after .backward() differs from what torch.autograd.grad returns",),
            )
    return None
