"""Runs one operation and watches which of its tensors autograd keeps for backward.

Saving is observed, not inferred: `saved_tensors_hooks` sees every tensor that is kept, and a kept tensor is an
argument or a result when it lives in that argument's or result's storage. This module must not know which operations
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

RESULT = "result"


@dataclass(frozen=True)
class Observation:
    """What one call did.

    `kinds` has one letter for each positional argument: T for a tensor (or a list of them), N for a number, S for a
    string, `-` for anything else, cut after the last of the other letters among the first three, then `*` when there
    were keywords.
    `saved` says for each argument that alone required gradients (position, or keyword) what was kept: positions,
    keywords, `result` (the only or first output), `result1`, …. `outputs` has a letter for each output: D when it
    required gradients in any of those runs, `-` otherwise.
    """

    kinds: str
    saved: dict[str, frozenset[str]]
    outputs: str

    @property
    def differentiable(self) -> bool:
        """Whether any output required gradients in any of the runs."""
        return "D" in self.outputs


def kinds_of(arguments: tuple[object, ...]) -> str:
    """The letters of the positional arguments, as `Observation.kinds` describes them."""
    letters = "".join(_kind(argument) for argument in arguments[:3])
    return letters.rstrip("-")


def _kind(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return "T"
    if isinstance(argument, (int, float, complex)) and not isinstance(argument, bool):
        return "N"
    if isinstance(argument, str):
        return "S"
    if isinstance(argument, (list, tuple)) and argument and all(isinstance(item, torch.Tensor) for item in argument):
        return "T"
    return "-"


def observe(
    operation: Callable[..., object],
    arguments: tuple[object, ...],
    keywords: dict[str, object],
    *,
    in_place: bool = False,
) -> Observation:
    """Runs the operation once for each floating tensor argument, that one requiring gradients.

    `in_place`: the operation writes its first argument, which is then given as a fresh copy and counts as the
    result, no longer as an argument. Raises whatever the operation raises.
    """
    leaves, structure = tree_flatten_with_path((arguments, keywords))
    tensors = [index for index, (_, leaf) in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    saved: dict[str, frozenset[str]] = {}
    outputs: list[bool] = []
    for target in tensors:
        if not _can_require_gradients(leaves[target][1]):
            continue
        kept, flags = _run(operation, leaves, structure, tensors, target, in_place=in_place)
        name = _argument_name(leaves[target][0])
        saved[name] = saved[name] & kept if name in saved else kept
        outputs = [one or other for one, other in zip(flags, outputs or flags, strict=True)]
    letters = "".join("D" if flag else "-" for flag in outputs)
    return Observation(kinds_of(arguments) + ("*" if keywords else ""), saved, letters)


def _can_require_gradients(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.is_floating_point()


def _run(operation, leaves, structure, tensors, target, *, in_place):
    values = [leaf for _, leaf in leaves]
    owners: dict[int, str] = {}
    for index in tensors:
        copy = leaves[index][1].detach().clone()
        if index == target:
            copy.requires_grad_()
        if in_place and index == tensors[0]:
            copy = copy.clone()
        values[index] = copy
        owners[_storage(copy)] = _argument_name(leaves[index][0])
    arguments, keywords = tree_unflatten(values, structure)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:
            kept.append(_storage(tensor))
        return tensor

    torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats the stack for every kind of device
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        outcome = operation(*arguments, **keywords)
    if in_place:
        outcome = arguments[0]
        owners.pop(_storage(arguments[0]))
    outputs = [item for item in tree_flatten(outcome)[0] if isinstance(item, torch.Tensor)]
    for position, output in enumerate(outputs):
        # An output that is a view of an argument is that argument: nothing is said about it twice.
        owners.setdefault(_storage(output), f"{RESULT}{position or ''}")
    names = frozenset(owners[storage] for storage in kept if storage in owners)
    return names, [output.requires_grad for output in outputs]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _argument_name(path) -> str:
    """`0`, `1`, … for a positional argument (also for an item of a list at that position), else the keyword."""
    section, entry = path[0].idx, path[1]
    return str(entry.idx) if section == 0 else entry.key
