"""Nested values and the tensors in them: lists, tuples, dicts, dataclasses, and objects that hold tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

DEPTH: Final = 8
LEAVES: Final = 1000  # an output with more tensors than that is no output that a gradient is asked of


def tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor in `value` with its path, such as `[0].loss`; the same tensor only once."""
    found: list[tuple[str, torch.Tensor]] = []
    seen: set[int] = set()
    _walk(value, "", 0, found, seen)
    return found


def _walk(value: Any, path: str, depth: int, found: list[tuple[str, torch.Tensor]], seen: set[int]) -> None:
    if len(found) >= LEAVES or depth > DEPTH or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        found.append((path, value))
        return
    for name, item in _children(value):
        _walk(item, path + name, depth + 1, found, seen)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", None)
        if names:
            return [(f".{name}", item) for name, item in zip(names, value, strict=False)]
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{item.name}", getattr(value, item.name, None)) for item in dataclasses.fields(value)]
    if isinstance(value, torch.distributions.Distribution):
        return [(f".{name}", item) for name, item in _parameters(value).items()]
    if isinstance(value, torch.nn.Module | type):
        return []
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and any(isinstance(item, torch.Tensor) for item in own.values()):
        return [(f".{name}", item) for name, item in own.items()]
    return []


def transform(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
    """The same structure with every tensor changed; containers are new, other objects stay as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if depth > DEPTH:
        return value
    if type(value) in (list, tuple):
        return type(value)(transform(item, change, depth + 1) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(transform(item, change, depth + 1) for item in value))
    if type(value) is dict:
        return {key: transform(item, change, depth + 1) for key, item in value.items()}
    if type(value) is types.SimpleNamespace:
        return types.SimpleNamespace(**{k: transform(item, change, depth + 1) for k, item in vars(value).items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            item.name: transform(getattr(value, item.name), change, depth + 1)
            for item in dataclasses.fields(value)
            if item.init
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, torch.distributions.Distribution) and (given := _parameters(value)):
        with contextlib.suppress(TypeError, ValueError):  # a subclass with a constructor of its own stays as it is
            return type(value)(**{name: transform(item, change, depth + 1) for name, item in given.items()})
    return value


def _parameters(value: torch.distributions.Distribution) -> dict[str, torch.Tensor]:
    """What a distribution was given; of probabilities and logits only one is, the other follows from it."""
    try:
        names = list(value.arg_constraints)
    except NotImplementedError:
        return {}
    own = {name: vars(value)[name] for name in names if isinstance(vars(value).get(name), torch.Tensor)}
    if "logits" in own:
        own.pop("probs", None)
    return own
