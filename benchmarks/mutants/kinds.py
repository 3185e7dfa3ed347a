"""The kinds of wrong backward that any Function can have, as text laid into or around a right one.

`slot`: the position in `gradients` that is spoiled; `other`: the position of another gradient of the same shape;
`sibling`: the position of any other gradient; `saved`: where among the saved tensors the input of that slot is;
`kept_at`: where any floating one is. A kind that needs one of these applies only where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.mutants.rewriting import Edit

Group = Literal["ordinary", "precision", "hidden"]


@dataclass(frozen=True, slots=True)
class Kind:
    """`group`: wrong on ordinary inputs, by rounding only, or hidden in a situation. `causes`: names that fit."""

    name: str
    group: Group
    edit: Edit
    causes: tuple[str, ...]
    trigger: str = "ordinary"
    standard: bool = True  # a slip that diagnosis should name

    def needs(self, word: str) -> bool:
        """Whether its text has this place to fill."""
        parts = (self.edit.before, self.edit.after, self.edit.forward, self.edit.reads, self.edit.keeps)
        return any("{" + word + "}" in part for part in parts)


def _spoil(expression: str, condition: str = "") -> Edit:
    """`g` is the gradient in the slot."""
    assignment = f"gradients[{{slot}}] = {expression}"
    if condition:
        return Edit(after=f"g = gradients[{{slot}}]\nif {condition}:\n    {assignment}")
    return Edit(after=f"g = gradients[{{slot}}]\n{assignment}")


def _part(selection: str, change: str, condition: str = "True") -> Edit:
    """Changes some coordinates of the flat gradient."""
    body = f"flat = g.reshape(-1).clone()\nflat[{selection}] {change}\ngradients[{{slot}}] = flat.reshape(g.shape)"
    indented = body.replace("\n", "\n    ")
    start = "g = gradients[{slot}]\n"
    return Edit(after=start + (body if condition == "True" else f"if {condition}:\n    {indented}"))


AVERAGED: Final = ("mean_instead_of_sum", "scaled_gradient", "missing_term", "wrong_reduction")
TAIL: Final = ("wrong_tail", "size_dependent", "wrong_coordinates")

KINDS: Final = (
    Kind("factor 2", "ordinary", _spoil("2 * g"), ("scaled_gradient",)),
    Kind("factor one half", "ordinary", _spoil("0.5 * g"), ("scaled_gradient",)),
    Kind("sign", "ordinary", _spoil("-g"), ("wrong_sign",)),
    Kind("zero gradient", "ordinary", _spoil("torch.zeros_like(g)"), ("missing_gradient",)),
    Kind(
        "swapped gradients",
        "ordinary",
        Edit(after="gradients[{slot}], gradients[{other}] = gradients[{other}], gradients[{slot}]"),
        ("swapped_gradients",),
    ),
    Kind("small error 5e-4", "ordinary", _spoil("g * (1 + 5e-4)"), ("scaled_gradient",)),
    Kind(
        "one coordinate",
        "ordinary",
        _part("g.numel() // 2", "*= 1.5", "g.numel() > 1"),
        ("wrong_coordinates", "wrong_tail"),
    ),
    Kind("tail from an element on", "ordinary", _part("(3 * g.numel()) // 4 :", "*= 0.5", "g.numel() > 3"), TAIL),
    Kind("divided by the batch", "ordinary", _spoil("g / g.shape[0]", "g.ndim > 0"), ("scaled_gradient",)),
    Kind("times the root of d", "ordinary", _spoil("g * g.shape[-1] ** 0.5", "g.ndim > 0"), ("scaled_gradient",)),
    Kind("transposed", "ordinary", _spoil("g.mT.reshape(g.shape)", "g.ndim > 1"), ("transposed",)),
    Kind("flipped", "ordinary", _spoil("g.flip(-1)", "g.ndim > 0"), ("flipped",)),
    Kind("mean for sum", "ordinary", Edit(average=True), AVERAGED),
    Kind(
        "mean removed",
        "ordinary",
        _spoil("g - g.mean(-1, keepdim=True)", "g.ndim > 0 and g.shape[-1] > 1"),
        ("missing_term", "extra_term"),
    ),
    Kind(
        "constant added",
        "ordinary",
        _spoil("g + 1e-3 * g.abs().amax()"),
        ("missing_term", "not_linear", "constant_offset"),
    ),
    Kind(
        "grad_output's scale ignored",
        "ordinary",
        Edit(before="{grad} = torch.ones_like({grad})"),
        ("not_linear", "ignores_grad_output"),
    ),
    Kind(
        "grad_output clipped",
        "hidden",
        Edit(before="{grad} = {grad}.clamp(-20.0, 20.0)"),
        ("not_linear",),
        "grad large",
    ),
    Kind("last of odd lengths", "hidden", _part("-1", "= 0", "g.numel() > 1 and g.numel() % 2 == 1"), TAIL, "sizes"),
    Kind(
        "remainder of four",
        "hidden",
        Edit(
            after="g = gradients[{slot}]\nrest = g.shape[-1] % 4 if g.ndim else 0\nif rest:\n"
            "    gradients[{slot}] = torch.cat([g[..., :-rest], 0 * g[..., -rest:]], -1)"
        ),
        (*TAIL, "missing_gradient"),
        "sizes",
    ),
    Kind("beyond 256 elements", "hidden", _part("256:", "= 0", "g.numel() > 256"), TAIL, "sizes"),
    Kind(
        "batch of one",
        "hidden",
        _spoil("g.sum(-1, keepdim=True).expand(g.shape)", "g.ndim > 1 and g.shape[0] == 1"),
        ("size_dependent",),
        "batch of one",
    ),
    Kind(
        "rare region",
        "hidden",
        Edit(
            after="x = ctx.saved_tensors[{saved}]\ng = gradients[{slot}]\n"
            "gradients[{slot}] = torch.where(x < -3.0, 0.5 * g, g)"
        ),
        ("wrong_region", "wrong_coordinates"),
        "region",
    ),
    Kind("rounded to bfloat16", "precision", _spoil("g.to(torch.bfloat16).to(g.dtype)"), ("rounded",)),
    Kind("rounded to float32", "precision", _spoil("g.to(torch.float32).to(g.dtype)"), ("rounded",)),
    Kind(
        "wrong in float32",
        "hidden",
        _spoil("0.5 * g", "g.dtype == torch.float32"),
        ("dtype_dependent",),
        "float32",
    ),
    Kind(
        "wrong in bfloat16",
        "hidden",
        _spoil("0.5 * g", "g.dtype in (torch.bfloat16, torch.float16)"),
        ("dtype_dependent",),
        "bfloat16",
    ),
    Kind(
        "wrong under autocast",
        "hidden",
        Edit(
            forward="ctx.low_precision = torch.is_autocast_enabled('cpu')",
            after="if ctx.low_precision:\n    gradients[{slot}] = 2 * gradients[{slot}]",
        ),
        ("autocast_dependent", "dtype_dependent"),
        "autocast",
    ),
    Kind(
        "grad_output read as contiguous",
        "hidden",
        Edit(
            before="if not {grad}.is_contiguous() and 0 not in {grad}.stride():\n"
            "    {grad} = {grad}.as_strided({grad}.shape, torch.empty({grad}.shape).stride())"
        ),
        ("grad_output_layout",),
        "grad layout",
    ),
    Kind(
        "expanded grad_output read as full",
        "hidden",
        Edit(
            before="if {grad}.ndim and 0 in {grad}.stride() and {grad}.numel() > 1:\n"
            "    first = torch.zeros({grad}.numel(), dtype={grad}.dtype)\n    first[0] = 1\n"
            "    {grad} = {grad} * first.reshape({grad}.shape)"
        ),
        ("grad_output_layout",),
        "grad expanded",
    ),
    Kind(
        "input read as contiguous",
        "hidden",
        Edit(
            reads="[t if t is None or t.is_contiguous() else t.as_strided(t.shape, torch.empty(t.shape).stride()) "
            "for t in {read}]"
        ),
        ("input_layout",),
        "input layout",
    ),
    Kind(
        "saved tensors detached",
        "hidden",
        Edit(reads="[t.detach() for t in {read}]"),
        ("wrong_second_order",),
        "second order",
    ),
    Kind(
        "a copy kept on ctx",
        "hidden",
        Edit(
            keeps="ctx.save_for_backward(*{kept})\nctx.copies = [t.detach().clone() for t in {kept}]",
            reads="ctx.copies",
        ),
        ("wrong_second_order",),
        "second order",
    ),
    Kind(
        "grad_output mutated",
        "hidden",
        Edit(after="gradients = [g * 1 if g is not None else None for g in gradients]\n{grad}.detach().mul_(0.5)"),
        ("grad_output_mutated",),
        "grad mutated",
    ),
    Kind(
        "saved tensor mutated",
        "hidden",
        Edit(
            after="gradients = [g * 1 if g is not None else None for g in gradients]\n"
            "ctx.saved_tensors[{kept_at}].data.mul_(0.9)"
        ),
        ("saved_tensor_mutated",),
        "saved mutated",
    ),
    Kind(
        "saved tensor mutated, counted",
        "hidden",
        Edit(
            after="gradients = [g * 1 if g is not None else None for g in gradients]\n"
            "ctx.saved_tensors[{kept_at}].detach().add_(0.1)"
        ),
        ("saved_tensor_mutated",),
        "saved mutated",
    ),
    Kind(
        "state on the class",
        "hidden",
        Edit(keeps="{name}.kept = {kept}", reads="{name}.kept"),
        ("state_outside_ctx",),
        "interleaved",
    ),
    Kind(
        "a single input requires grad",
        "hidden",
        Edit(
            after="alone = sum(ctx.needs_input_grad) == 1 and not ctx.needs_input_grad[{sibling}]\n"
            "if alone and gradients[{slot}] is not None:\n"
            "    gradients[{slot}] = 0.5 * gradients[{slot}]"
        ),
        ("requires_grad_subset",),
        "subset",
    ),
    Kind(
        "another input is frozen",
        "hidden",
        Edit(
            after="if not ctx.needs_input_grad[{sibling}] and gradients[{slot}] is not None:\n"
            "    gradients[{slot}] = torch.zeros_like(gradients[{slot}])"
        ),
        ("requires_grad_subset",),
        "subset",
    ),
    Kind(
        "same tensor twice",
        "hidden",
        Edit(
            after="one, two = ctx.saved_tensors[{saved}], ctx.saved_tensors[{saved_other}]\n"
            "if one.data_ptr() == two.data_ptr():\n    gradients[{other}] = torch.zeros_like(gradients[{other}])"
        ),
        ("aliasing",),
        "aliased",
    ),
    Kind(
        "unused output",
        "hidden",
        Edit(
            before="unused = {second_grad} is None or not {second_grad}.any()",
            after="if unused:\n    gradients[{slot}] = 0.5 * gradients[{slot}]",
        ),
        ("unused_output",),
        "unused output",
    ),
    Kind(
        "input kept as attribute",
        "hidden",
        Edit(keeps="ctx.kept = {kept}", reads="ctx.kept"),
        ("stale_saved_value",),
        "changed later",
    ),
    Kind(
        "random numbers in backward",
        "ordinary",
        _spoil("g * (1 + 0.01 * torch.randn_like(g))"),
        ("random_backward",),
    ),
    Kind(
        "random numbers, now and then",
        "ordinary",
        _spoil("g * (torch.rand(g.shape) < 0.9)"),
        ("random_backward", "missing_gradient"),
    ),
    Kind(
        "second pass accumulates",
        "hidden",
        Edit(
            after="ctx.total = gradients[{slot}] + getattr(ctx, 'total', 0)\ngradients[{slot}] = ctx.total",
        ),
        ("backward_not_repeatable", "state_outside_ctx", "saved_tensor_mutated", "stale_saved_value"),
        "twice",
    ),
)
