"""Faults that show in one situation only: there the condition is the cause, and what is wrong then is the detail."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.situations import ORDINARY, Situation

# Of several changed fields the first of these is the cause: values and sizes are often there to show the others.
_ORDER: Final = (
    "sequence",
    "wanted",
    "alias",
    "cotangent",
    "input_layout",
    "flags",
    "arguments",
    "autocast",
    "dtype",
    "resize",
    "rank",
    "broadcast",
    "others",
    "values",
)

_CAUSES: Final = {
    "wanted": "requires_grad_subset",
    "alias": "aliasing",
    "input_layout": "input_layout",
    "flags": "mode_dependent",
    "arguments": "argument_dependent",
    "autocast": "autocast_dependent",
    "dtype": "dtype_dependent",
    "resize": "size_dependent",
    "rank": "shape_dependent",
    "broadcast": "shape_dependent",
    "others": "value_dependent",
    "values": "value_dependent",
}

_SEQUENCES: Final = {
    "interleaved": "state_outside_ctx",
    "after_another": "state_outside_ctx",
    "repeated": "state_outside_ctx",
    "used_twice": "state_outside_ctx",
    "inference_first": "state_outside_ctx",
    "other_thread": "state_outside_ctx",
    "after_update": "state_outside_ctx",
    "second_backward": "backward_not_repeatable",
    "input_written": "stale_saved_value",
    "output_written": "stale_saved_value",
    "other_seed": "random_backward",
    "create_graph": "mode_dependent",
}

_HINTS: Final = {
    "state_outside_ctx": "keep what backward needs on ctx (save_for_backward): a class attribute, a global or a cache "
    "is overwritten by the next call",
    "backward_not_repeatable": "backward changes what was saved, or a counter: it must not write to saved tensors, to "
    "grad_output or to attributes",
    "stale_saved_value": "save tensors with ctx.save_for_backward, which notices writes: a tensor on a ctx attribute, "
    "or its `.data`, is read after it was overwritten",
    "random_backward": "backward draws random numbers: draw the mask or noise in forward and save it",
    "requires_grad_subset": "look at ctx.needs_input_grad: each gradient must keep its place in the returned tuple, "
    "whichever others are None",
    "aliasing": "backward writes to a saved tensor, or tells its inputs apart by identity or address",
    "grad_output_layout": "backward reads grad_output's memory in the order of a contiguous tensor: call "
    "`.contiguous()` or use its strides, and `reshape` for `view`",
    "input_layout": "forward or backward reads an input's memory in the order of a contiguous tensor",
    "not_linear": "a gradient is linear in grad_output: look for a clamp, a threshold or a normalisation of it",
    "grad_output_dependent": "backward looks at the values of grad_output: a shortcut for ones, zeros or constants",
    "unused_output": "the incoming gradient of an output that isn't used is None or zeros: look how backward treats it "
    "(ctx.set_materialize_grads)",
    "mode_dependent": "backward asks for a process-wide mode and takes another path then",
    "argument_dependent": "the derivative depends on this argument: look for one that is hard-coded, or a branch on it",
    "autocast_dependent": "decorate with custom_fwd and custom_bwd, or keep what is saved in the inputs' dtype",
    "dtype_dependent": "look for a branch on dtype, or a cast in backward",
    "size_dependent": "look for a size that is hard-coded, a branch on numel(), or the tail of a block",
    "shape_dependent": "look for an axis counted from the wrong end, a branch on dim(), or a sum over fixed axes",
    "value_dependent": "look for a branch, a mask or an approximation that holds for these values only",
}


def conditional(situation: Situation, pattern: Named) -> Named:
    """The pattern named at the failing call, as what happens in this situation."""
    changed = [name for name in _ORDER if name in situation.changed()]
    if not changed:
        return pattern
    field = changed[0]
    cause = _cause(field, situation)
    where = situation.describe()
    numbers = {**pattern.numbers, "pattern": pattern.cause, "conditions": changed}
    # In a narrow dtype, rounding more than that dtype does is the finding; among values, the region is.
    if (field in {"dtype", "autocast"} and pattern.cause == "rounded") or (
        field == "values"
        and pattern.cause == "wrong_region"
        and situation.values.kind not in {"zero_row", "equal_rows"}
    ):
        return replace(pattern, text=f"{where}, {pattern.text}", numbers={**numbers, "condition": cause})
    hint = _HINTS[cause]
    if pattern.hint and pattern.cause not in {"wrong_gradient", "scaled_gradient"}:
        hint = f"{hint}; {pattern.hint}"
    return Named(cause, f"wrong only {where}: {pattern.text}", numbers, hint)


def _cause(field: str, situation: Situation) -> str:
    if field == "sequence":
        return _SEQUENCES[situation.sequence]
    if field == "broadcast" and len(situation.broadcast) > 1:
        return "size_dependent"  # a dimension of several inputs at once
    if field != "cotangent":
        return _CAUSES[field]
    cotangent = situation.cotangent
    if cotangent.layout != ORDINARY.cotangent.layout:
        return "grad_output_layout"
    if cotangent.outputs is not None:
        return "unused_output"
    return "not_linear" if cotangent.kind in {"scaled", "around"} else "grad_output_dependent"
