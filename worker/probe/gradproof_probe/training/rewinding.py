"""The state of modules at one moment, so that a call can start from it once more: buffers and plain attributes.

What is put back is always a copy, and the objects that stood there meanwhile come back untouched afterwards, versions
of tensors included. Parameters are left alone. This module must not judge.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.training.plain_state import Attribute, changed, leaves, plain_attributes
from gradproof_probe.trees import transform

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Moment:
    """Copies of what each module held, and what they consisted of."""

    held: tuple[tuple[dict[str, Any], str, Any], ...]
    told: dict[Attribute, Any]


def moment(modules: Sequence[torch.nn.Module]) -> Moment:
    """The state of the modules as it is now. What can't be copied is left out."""
    held: list[tuple[dict[str, Any], str, Any]] = []
    told: dict[Attribute, Any] = {}
    for number, root in enumerate(modules):
        told |= {_numbered(number, attribute): value for attribute, value in state_of(root).items()}
        for _, item in root.named_modules():
            held += [(item._buffers, name, _copy(buffer)) for name, buffer in item._buffers.items()]
        by_name = dict(root.named_modules())
        with_leaves = leaves(root, cloned=False)
        for attribute, value in plain_attributes(root):
            if attribute in with_leaves:
                copied = _copy(value)
                if copied is not _ABSENT:
                    held.append((by_name[attribute.owner].__dict__, attribute.name, copied))
    return Moment(tuple(held), told)


def state_of(module: torch.nn.Module) -> dict[Attribute, Any]:
    """What each plain attribute and each buffer consists of, copied."""
    found: dict[Attribute, Any] = dict(leaves(module))
    for name, buffer in module.named_buffers():
        owner, _, last = name.rpartition(".")
        found[Attribute(owner, last)] = {"": buffer.detach().clone()}
    return found


def moved(before: Moment, modules: Sequence[torch.nn.Module]) -> list[Attribute]:
    """The attributes and buffers that hold something else than they did."""
    now: dict[Attribute, Any] = {}
    for number, root in enumerate(modules):
        now |= {_numbered(number, attribute): value for attribute, value in state_of(root).items()}
    return changed(before.told, now)


@contextmanager
def rewound(before: Moment) -> Iterator[None]:
    """The modules as they were at that moment; what they hold now comes back at the end."""
    now = [(names, name, names.get(name, _ABSENT)) for names, name, _ in before.held]
    _put((names, name, _copy(value)) for names, name, value in before.held)
    try:
        yield
    finally:
        _put(iter(now))


def _put(values: Iterator[tuple[dict[str, Any], str, Any]]) -> None:
    for names, name, value in values:
        if value is _ABSENT:
            names.pop(name, None)
        else:
            names[name] = value


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(transform(value, lambda tensor: tensor.detach().clone()))
    except Exception:  # submitted objects may refuse to be copied in any way
        return _ABSENT


def _numbered(number: int, attribute: Attribute) -> Attribute:
    """Several modules may have attributes of one name."""
    return attribute if number == 0 else Attribute(f"{number}:{attribute.owner}", attribute.name)
