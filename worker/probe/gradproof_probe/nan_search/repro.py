"""A script that builds the input and shows what is not finite, with torch and the repository alone."""

from __future__ import annotations

from typing import Final

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.nan_search.constructions import Edit
from gradproof_probe.nan_search.judgement import Fault
from gradproof_probe.repro import whole_script
from gradproof_probe.request import Target

_BODY: Final = """
target, args, kwargs, _, parameters = build()
if isinstance(target, torch.nn.Module):
    target.to(torch.{precision})
args, kwargs = each([args, kwargs], lambda t: t.detach().to(torch.{precision}) if t.is_floating_point() else t)

# The input: {description}
{construction}
args, kwargs = each([args, kwargs], lambda t: t.requires_grad_() if t.is_floating_point() else t)
outputs = run(target, args, kwargs)
leaves = [*tensors([args, kwargs]), *(p for _, p in parameters)]
weight = [torch.where(o.isfinite(), w, torch.zeros_like(w)) for o, w in zip(outputs, weights(outputs))]
found = gradients(outputs, leaves, weight)


def count(values):
    return [int((~v.isfinite()).sum()) for v in values if v is not None]


{verdict}
"""
_FORWARD: Final = 'report("elements of each output that are not finite", "0", count(outputs), sum(count(outputs)) > 0)'
_BACKWARD: Final = """print("elements of each output that are not finite:", count(outputs))
report("elements of each gradient that are not finite", "0", count(found), sum(count(found)) > 0)"""


def nan_repro(target: Target, recipe: Recipe, fault: Fault, *, seed: int) -> str | None:
    """None where the input is too long to be written down."""
    lines = [_line(edit) for edit in fault.construction.edits]
    if not lines and fault.construction.naturalness != "given":
        return None
    body = _BODY.format(
        precision=fault.precision,
        description=fault.construction.description,
        construction="\n".join(lines) or "# (as it was given)",
        verdict=_FORWARD if fault.birth.phase == "forward" else _BACKWARD,
    )
    # The module is built in float32, as its author would, and then cast.
    return whole_script(target, recipe, body, seed=seed, summary=fault.text, dtype="float32")


def _line(edit: Edit) -> str:
    place = _place(edit.slot)
    other = "" if edit.other is None else f", other={_place(edit.other)}"
    return f"{place} = each({place}, lambda x{other}: ({edit.expression}).to(x.dtype))"


def _place(slot: int | str) -> str:
    return f"args[{slot}]" if isinstance(slot, int) else f"kwargs[{slot!r}]"
