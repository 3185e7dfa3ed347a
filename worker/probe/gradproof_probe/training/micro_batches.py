"""Batches cut into parts, put together, and paired otherwise. This module must not know what is trained with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from gradproof_probe.trees import tensors, transform

_MOST_BATCHES: Final = 64


def size_of(batch: Any) -> int | None:
    """How many samples a batch has: the first axis that all of its tensors have in common, but for single numbers."""
    sizes = {value.shape[0] for _, value in tensors(batch) if value.ndim}
    return sizes.pop() if len(sizes) == 1 else None


def is_batch(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer | str):
        return False
    return size_of(value) is not None


def batches_in(value: Any) -> list[Any] | None:
    """The batches that a loader, a list or an iterator gives; None if it is nothing of the kind.

    Of a pair of tensors, each is no batch of its own.
    """
    if isinstance(value, torch.Tensor | dict | str | torch.nn.Module):
        return None
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)
    elif isinstance(value, torch.utils.data.DataLoader | Iterator):
        items = [item for _, item in zip(range(_MOST_BATCHES), value, strict=False)]
    else:
        return None
    if not items or not all(map(is_batch, items)) or (type(value) is tuple and isinstance(items[0], torch.Tensor)):
        return None
    return items


def part(value: Any, rows: slice, size: int) -> Any:
    """Some samples of a batch of this size; what has no axis of samples stays as it is."""
    return transform(value, lambda t: t[rows].clone() if t.ndim and t.shape[0] == size else t.clone())


def merged(batches: Sequence[Any]) -> Any:
    """One batch with the samples of all. Raises `ValueError` where they don't fit together."""
    lists = [[value for _, value in tensors(batch)] for batch in batches]
    if len({len(values) for values in lists}) != 1:
        raise ValueError("the batches have different numbers of tensors")
    together = iter(
        [
            torch.cat(list(column)) if column[0].ndim else column[0]
            for column in zip(*lists, strict=True)
            if _fit(column)
        ]
    )
    return transform(batches[0], lambda _: next(together))


def _fit(column: Sequence[torch.Tensor]) -> bool:
    first = column[0]
    if any(value.shape[1:] != first.shape[1:] or value.dtype != first.dtype for value in column):
        raise ValueError("the batches have tensors of different shapes")
    return True


def paired_otherwise(batch: Any, turns: int) -> Any:
    """The same values, but the first tensor's samples with the next ones' of the others: another gradient."""
    found = [value for _, value in tensors(batch)]
    if not found:
        return batch
    first = found[0]
    return transform(batch, lambda t: t.roll(turns, 0) if t is first and t.ndim else t.clone())
