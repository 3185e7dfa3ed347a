"""Inputs worth trying because they happen: padding, ties, duplicates, masks that leave nothing, saturated values.

Each is a list of expressions over the ordinary inputs, so that the same text builds it here and in a stand-alone
script. This module must not run the function under search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from gradproof_probe.nan_search.subject import Inputs
from gradproof_probe.trees import tensors, transform

# natural: happens in every data set. plausible: values that training reaches. extreme: beyond what it should.
# tuned: found by descent and gone when moved a little.
Naturalness = Literal["given", "natural", "plausible", "extreme", "tuned"]
Slot = int | str

# Arguments that get constructions of their own; joint ones change all of them.
_MOST_SLOTS: Final = 6


@dataclass(frozen=True, slots=True)
class Edit:
    """`expression` makes the new tensor from the old one, `x`, and from `other`, the tensor of another argument."""

    slot: Slot
    expression: str
    other: Slot | None = None


@dataclass(frozen=True, slots=True)
class Construction:
    description: str
    naturalness: Naturalness
    edits: tuple[Edit, ...] = ()

    def after(self, earlier: Construction) -> Construction:
        """The same on top of another one."""
        if not earlier.edits:
            return self
        return Construction(
            f"{self.description}; {earlier.description}", self.naturalness, (*earlier.edits, *self.edits)
        )

    def build(self, inputs: Inputs) -> Inputs | None:
        """None where the expressions don't fit the inputs."""
        try:
            for edit in self.edits:
                inputs = _apply(edit, inputs)
        except Exception:
            return None
        return inputs


def _apply(edit: Edit, inputs: Inputs) -> Inputs:
    other = None if edit.other is None else inputs.get(edit.other)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        made = eval(edit.expression, {"torch": torch, "x": tensor.detach(), "other": other})
        assert isinstance(made, torch.Tensor)
        return made.to(tensor.dtype)

    return inputs.replaced(edit.slot, transform(inputs.get(edit.slot), change))


GIVEN: Final = Construction("the inputs as they were given", "given")
# Bases for a function whose ordinary inputs already leave its domain.
REPAIRS: Final = (("absolute values", "x.abs() + 0.1"), ("values between 0 and 1", "x.sigmoid()"))

_FIRST: Final = "torch.tensor([0])"
# Arguments that hold logarithms: one of 100 would be e^100, so large values are not tried for them.
_LOGARITHM: Final = re.compile(r"log(?!it)|(^|_)ln(_|$)")
# (words, naturalness, expression, fewest dimensions)
_FLOATING: Final[tuple[tuple[str, Naturalness, str, int], ...]] = (
    ("a first row of zeros", "natural", f"x.index_fill(0, {_FIRST}, 0.0)", 1),
    ("one zero vector along the last dimension", "natural",
     "x * (torch.arange(x[..., 0].numel()) > 0).reshape(*x.shape[:-1], 1).to(x.dtype)", 2),
    ("a zero in the first place of each row", "natural", f"x.index_fill(-1, {_FIRST}, 0.0)", 2),
    ("all zeros", "natural", "torch.zeros_like(x)", 0),
    ("equal rows", "natural", "x[:1].expand_as(x).clone()", 2),
    ("rows that are constant", "natural", "x[..., :1].expand_as(x).clone()", 1),
    ("identity matrices", "natural", "torch.eye(x.shape[-1]).expand_as(x).clone()", 2),
    ("one-hot rows", "natural", f"torch.zeros_like(x).index_fill(-1, {_FIRST}, 1.0)", 1),
    ("all ones", "natural", "torch.ones_like(x)", 0),
    ("values of exactly 0 and 1", "plausible", "(x > 0).to(x.dtype)", 0),
    ("values times 30", "plausible", "x * 30.0", 0),
    ("values times 100", "plausible", "x * 100.0", 0),
    ("all 100", "plausible", "torch.full_like(x, 100.0)", 0),
    ("all -100", "plausible", "torch.full_like(x, -100.0)", 0),
    ("a first row larger by 200", "plausible", f"x.index_add(0, {_FIRST}, torch.full_like(x[:1], 200.0))", 2),
    ("one column larger by 200", "plausible", f"x.index_add(-1, {_FIRST}, torch.full_like(x[..., :1], 200.0))", 1),
    ("values times 3000", "plausible", "x * 3000.0", 0),
    ("values times 1e-6", "plausible", "x * 1e-6", 0),
)  # fmt: skip
_BOOLEAN: Final[tuple[tuple[str, Naturalness, str, int], ...]] = (
    ("a first row of False", "natural", f"x.index_fill(0, {_FIRST}, False)", 1),
    ("a first row of True", "natural", f"x.index_fill(0, {_FIRST}, True)", 1),
    ("one vector of False along the last dimension", "natural",
     "x & (torch.arange(x[..., 0].numel()) > 0).reshape(*x.shape[:-1], 1)", 2),
    ("one vector of True along the last dimension", "natural",
     "x | (torch.arange(x[..., 0].numel()) == 0).reshape(*x.shape[:-1], 1)", 2),
    ("False in the first place of each row", "natural", f"x.index_fill(-1, {_FIRST}, False)", 2),
    ("True in the first place of each row", "natural", f"x.index_fill(-1, {_FIRST}, True)", 2),
    ("all False", "plausible", "torch.zeros_like(x)", 0),
    ("all True", "plausible", "torch.ones_like(x)", 0),
)  # fmt: skip
_INTEGER: Final[tuple[tuple[str, Naturalness, str, int], ...]] = (
    ("all the first class", "natural", "torch.zeros_like(x)", 0),
    ("all the same class", "natural", "torch.full_like(x, int(x.max()))", 1),
    (
        "classes one after the other",
        "natural",
        "(torch.arange(x.numel()) % (x.max() + 1)).reshape(x.shape).to(x.dtype)",
        1,
    ),
)
_IGNORED: Final[tuple[tuple[str, Naturalness, str, int], ...]] = (
    ("all -100, the ignored class", "plausible", "torch.full_like(x, -100)", 1),
)  # fmt: skip


def constructions(inputs: Inputs, *, ignoring: bool, emptying: bool) -> Iterator[Construction]:
    """The telling ones first: joint changes, then one argument at a time, then sizes.

    `ignoring`: a loss that knows ignored labels was called. Elsewhere a label of -100 reads memory that isn't its own
    (`ctc_loss`), and so does an empty batch (`emptying`): both are tried only where they mean something.
    """
    floating = [slot for slot in inputs.slots() if _holds(inputs.get(slot), "floating")]
    boolean = [slot for slot in inputs.slots() if _holds(inputs.get(slot), "boolean")]
    integer = [slot for slot in inputs.slots() if _holds(inputs.get(slot), "integer")]
    for slot in boolean:
        yield from _single(inputs, slot, _BOOLEAN)
    for slot in integer:
        yield from _single(inputs, slot, (*_INTEGER, *(_IGNORED if ignoring else ())))
    if len(floating) > 1:
        yield from _joint(inputs, floating)
    yield from _pairs(inputs, floating)
    for slot in floating[:_MOST_SLOTS]:
        yield from _single(inputs, slot, _FLOATING)
    yield from _sizes(inputs, emptying=emptying)


def holds_logarithms(name: str) -> bool:
    """Whether an argument of this name is the logarithm of something positive; logits are not."""
    return _LOGARITHM.search(name.lower()) is not None


def _single(inputs: Inputs, slot: Slot, table: tuple[tuple[str, Naturalness, str, int], ...]) -> Iterator[Construction]:
    dimensions = max((t.dim() for _, t in tensors(inputs.get(slot))), default=0)
    for words, naturalness, expression, fewest in table:
        if dimensions >= fewest and not (naturalness == "plausible" and holds_logarithms(inputs.name(slot))):
            yield Construction(f"`{inputs.name(slot)}`: {words}", naturalness, (Edit(slot, expression),))


def _joint(inputs: Inputs, floating: list[Slot]) -> Iterator[Construction]:
    least = min(max((t.dim() for _, t in tensors(inputs.get(slot))), default=0) for slot in floating)
    for words, naturalness, expression, fewest in _FLOATING:
        changed = [slot for slot in floating if naturalness != "plausible" or not holds_logarithms(inputs.name(slot))]
        if least >= fewest and changed:
            yield Construction(
                f"every floating input: {words}", naturalness, tuple(Edit(slot, expression) for slot in changed)
            )


def _pairs(inputs: Inputs, floating: list[Slot]) -> Iterator[Construction]:
    for position, first in enumerate(floating[:_MOST_SLOTS]):
        for second in floating[position + 1 : _MOST_SLOTS]:
            one, two = inputs.get(first), inputs.get(second)
            if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and one.shape == two.shape):
                continue
            pair = f"`{inputs.name(first)}` and `{inputs.name(second)}` identical"
            same = Edit(second, "other.clone()", first)
            yield Construction(pair, "natural", (same,))
            if one.dim():
                unit = Edit(first, "x / x.norm(dim=-1, keepdim=True)")
                yield Construction(f"{pair}, of length 1", "natural", (unit, same))
                opposite = Edit(second, "-other", first)
                pair = f"`{inputs.name(first)}` and `{inputs.name(second)}` opposite, of length 1"
                yield Construction(pair, "natural", (unit, opposite))
                yield Construction(
                    "the same row everywhere, of length 1",
                    "natural",
                    (Edit(first, "x.reshape(-1, x.shape[-1])[:1].expand_as(x).clone()"), unit, same),
                )
    for slot in floating[:_MOST_SLOTS]:
        if any(t.dim() > 1 for _, t in tensors(inputs.get(slot))):
            yield Construction(
                f"`{inputs.name(slot)}`: two equal rows",
                "natural",
                (Edit(slot, f"x.index_copy(0, torch.tensor([x.shape[0] - 1]), x.index_select(0, {_FIRST}))"),),
            )


def _sizes(inputs: Inputs, *, emptying: bool) -> Iterator[Construction]:
    """A batch of one, for every argument whose first dimension is that of the first tensor."""
    sized = [
        (slot, inputs.get(slot).shape[0])
        for slot in inputs.slots()
        if isinstance(inputs.get(slot), torch.Tensor) and inputs.get(slot).dim() > 0
    ]
    if sized and sized[0][1] > 1:
        batch = [slot for slot, size in sized if size == sized[0][1]]
        yield Construction("a batch of one", "natural", tuple(Edit(slot, "x[:1]") for slot in batch))
        if emptying:
            yield Construction("an empty batch", "plausible", tuple(Edit(slot, "x[:0]") for slot in batch))


def _holds(value: Any, kind: Literal["floating", "boolean", "integer"]) -> bool:
    found = [tensor for _, tensor in tensors(value)]
    if not found:
        return False
    if kind == "floating":
        return any(tensor.is_floating_point() for tensor in found)
    if kind == "boolean":
        return all(tensor.dtype == torch.bool for tensor in found)
    return all(
        not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool for tensor in found
    )


def literal(tensor: torch.Tensor) -> str:
    """The expression that makes this very tensor."""
    return f"torch.tensor({tensor.detach().to(torch.float64).tolist()!r}, dtype={tensor.dtype})"
