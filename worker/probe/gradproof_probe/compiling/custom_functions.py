"""Custom autograd Functions in plain execution: where they are applied, and what comes out without their backward."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gradproof_probe.gradients.attribution import Place, calling_line, relative


class _Context:
    """What forward is given for `ctx` when there is no backward to keep anything for."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *_tensors: torch.Tensor) -> None: ...

    mark_non_differentiable = mark_dirty

    def set_materialize_grads(self, value: bool) -> None: ...  # noqa: FBT001 - torch's own signature


@contextmanager
def watched(source_root: Path, *, backward: bool = True) -> Iterator[list[tuple[Place, str]]]:
    """Yields where submitted Functions are applied, and which. Without `backward` autograd differentiates their forward
    instead."""
    applied: list[tuple[Place, str]] = []
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_submitted(cls, source_root):
            return original.__func__(cls, *args, **kwargs)
        place = calling_line(source_root)
        if place is not None:
            applied.append((place, cls.__name__))
        if backward:
            return original.__func__(cls, *args, **kwargs)
        if has_setup_context(cls):
            return cls.forward(*args, **kwargs)
        return cls.forward(_Context(len(args)), *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield applied
    finally:
        torch.autograd.Function.apply = original


def has_setup_context(function: Any) -> bool:
    """Whether torch.func takes it: forward without ctx, and a method that fills it."""
    return bool(function.setup_context is not torch.autograd.Function.setup_context)


def _is_submitted(function: type, source_root: Path) -> bool:
    try:
        return relative(inspect.getfile(function), source_root) is not None
    except TypeError:
        return False
