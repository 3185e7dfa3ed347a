"""What a loss of a batch is in terms of its parts: their mean, their sum, a mean by other weights, or none of these."""

from __future__ import annotations

from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built, Recipe, build
from gradproof_probe.importing import Resolved, describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.training.accumulation import multiple
from gradproof_probe.training.micro_batches import part, size_of
from gradproof_probe.trees import tensors, transform

_CLOSE: Final = 1e-4
_Answer = tuple[float, list[torch.Tensor]]


def loss_of_parts(resolved: Resolved, recipe: Recipe, seed: int) -> tuple[str, str]:
    """(`mean`, `sum`, `weighted`, `mixed`, or empty for what is no loss of a batch; in words)."""
    built = build(resolved, recipe, seed=seed)
    data = [*built.args, built.kwargs]
    size = size_of(data)
    if size is None or size < 3:
        return "", "it is no training step, and its inputs have no common axis of three samples or more"
    try:
        whole = _answer(resolved, recipe, seed, slice(None), size)
        if whole is None:
            return "", "it is no training step, and it gives no single number for a batch"
        again = _answer(resolved, recipe, seed, slice(None), size, draw=1)
        cut = size // 2 + size % 2  # of three samples two and one: a mean of means is another than the mean
        first, second = (_answer(resolved, recipe, seed, rows, size) for rows in (slice(0, cut), slice(cut, size)))
    except Exception as error:  # a part may be too small for it
        return "", f"it can't be called with a part of the batch: {describe_error(error, 200)}"
    if first is None or second is None or again is None or abs(again[0] - whole[0]) > _CLOSE * abs(whole[0]):
        return "", "its value for the same batch is not always the same"
    scale = max(abs(whole[0]), abs(first[0]), abs(second[0]))
    if scale == 0:
        return "", "the loss is zero"
    mean = (cut * first[0] + (size - cut) * second[0]) / size
    if abs(mean - whole[0]) <= _CLOSE * scale:
        return "mean", "the loss of a batch is the mean over its samples: micro-batches of one size can be averaged"
    if abs(first[0] + second[0] - whole[0]) <= _CLOSE * scale:
        return "sum", "the loss of a batch is the sum over its samples: micro-batches add up without a division"
    if _weighted(whole, first, second, cut, size):
        return (
            "weighted",
            "the loss of a batch is a mean over something else than samples (tokens, class weights): averaged "
            "micro-batches give another gradient, unless each is divided by what the whole batch is divided by",
        )
    return "mixed", "the loss compares the samples of a batch with each other: micro-batches give another one"


def _answer(resolved: Resolved, recipe: Recipe, seed: int, rows: slice, size: int, draw: int = 0) -> _Answer | None:
    """The loss of some samples, and the gradients of the inputs that have the axis of samples."""
    built: Built = build(resolved, recipe, seed=seed)
    if built.instance is not None:
        built.instance.eval()

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach().clone()
        return value.requires_grad_() if value.is_floating_point() else value

    args: list[Any] = [transform(part(value, rows, size), leaf) for value in built.args]
    kwargs = {name: transform(part(value, rows, size), leaf) for name, value in built.kwargs.items()}
    reseed(seed + 2 + draw)
    outputs = [value for _, value in tensors(built.call(*args, **kwargs))]
    if len(outputs) != 1 or outputs[0].numel() != 1 or not outputs[0].is_floating_point():
        return None
    inputs = [value for _, value in tensors([args, kwargs]) if value.requires_grad and value.ndim]
    gradients: list[torch.Tensor] = []
    if inputs and outputs[0].requires_grad:
        found = torch.autograd.grad(outputs[0].sum(), inputs, allow_unused=True)
        gradients = [
            torch.zeros_like(x) if value is None else value.detach() for x, value in zip(inputs, found, strict=True)
        ]
    value = float(outputs[0])
    return (value, gradients) if value == value else None  # noqa: PLR0124


def _weighted(whole: _Answer, first: _Answer, second: _Answer, cut: int, size: int) -> bool:
    """Whether the gradients of a part are those that its samples have in the whole, but for one factor."""
    for rows, alone in ((slice(0, cut), first), (slice(cut, size), second)):
        inside = [value[rows].flatten() for value in whole[1] if len(value) == size]
        apart = [value.flatten() for value in alone[1] if len(value) == rows.stop - rows.start]
        if not inside or [len(value) for value in inside] != [len(value) for value in apart]:
            return False
        if multiple(torch.cat(inside).double(), torch.cat(apart).double()) is None:
            return False
    return True
