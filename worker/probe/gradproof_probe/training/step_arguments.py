"""The arguments of a training step for one call after the other: what holds state stays, data come as new copies.

This module must not judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built
from gradproof_probe.trees import transform

_HOLDERS = (torch.nn.Module, torch.optim.Optimizer)
_MOST_BATCHES: Final = 64


class StepArguments:
    """Iterators are read once and handed out anew: an exhausted loader would make the next call an empty one."""

    def __init__(self, built: Built) -> None:
        self._args = [_kept(value) for value in built.args]
        self._kwargs = {name: _kept(value) for name, value in built.kwargs.items()}

    def for_call(self) -> tuple[list[Any], dict[str, Any]]:
        return [_given(value) for value in self._args], {name: _given(value) for name, value in self._kwargs.items()}

    def holders(self) -> Iterator[Any]:
        """Modules, optimizers and parameters among the arguments and the attributes of objects among them."""
        for value in [*self._args, *self._kwargs.values()]:
            yield from _holders(value, 0)


class _Once:
    """What an iterator gave."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values


def _kept(value: Any) -> Any:
    if isinstance(value, Iterator) and not isinstance(value, torch.nn.Module):
        return _Once([item for _, item in zip(range(_MOST_BATCHES), value, strict=False)])
    return value


def _given(value: Any) -> Any:
    return iter([_given(item) for item in value.values]) if isinstance(value, _Once) else transform(value, _copied)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.requires_grad else tensor.detach().clone()


def _holders(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, _HOLDERS) or (isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf):
        yield value
    elif depth < 2 and isinstance(value, _Once):
        yield from (holder for item in value.values for holder in _holders(item, depth + 1))
    elif depth < 2 and isinstance(value, list | tuple):
        yield from (holder for item in value for holder in _holders(item, depth + 1))
    elif depth < 2 and isinstance(value, dict):
        yield from (holder for item in value.values() for holder in _holders(item, depth + 1))
    elif depth < 2 and isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        yield from (holder for item in list(vars(value).values()) for holder in _holders(item, depth + 1))
