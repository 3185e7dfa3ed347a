"""Where a training step has the number of micro-batches that make one step: an argument, an attribute, a name of its
module, or a number in its code. Each can be set to another value for a run.

What looks like such a number is found by what it is (a whole number); whether it is one, shows when it is set.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built

NAMED: Final = re.compile(
    r"accum|micro|chunk|every|sub_?batch|n_?split|update_?freq|(^|_)parts?$|grad_?steps", re.IGNORECASE
)
_MOST: Final = 10
_DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class Count:
    """`path` leads from the arguments to it: names of attributes, keys."""

    kind: str
    name: str
    value: int
    path: tuple[Any, ...] = ()

    @property
    def is_named(self) -> bool:
        return self.kind != "constant" and NAMED.search(self.name) is not None

    @property
    def text(self) -> str:
        return f"the constant {self.value}" if self.kind == "constant" else self.name


def counts(function: Any, built: Built, seen: int) -> list[Count]:
    """The likeliest first: by their names, then those that are as many as micro-batches were seen before a step."""
    found = [*_arguments(function, built), *_attributes(built), *_globals(function), *_constants(function)]
    order = sorted(enumerate(found), key=lambda item: (not item[1].is_named, item[1].value != seen, item[0]))
    return [count for _, count in order if count.is_named or count.value > 1][:_MOST]


@contextmanager
def being(count: Count, value: int, function: Any, built: Built) -> Iterator[None]:
    """The count at another value, in a built call."""
    undo: Callable[[], None] | None = None
    if count.kind == "argument":
        _set_argument(function, built, count.name, value)
    elif count.kind == "attribute":
        _set_attribute(built, count.path, value)
    else:
        plain = inspect.unwrap(function)
        if count.kind == "global":
            names = plain.__globals__
            before = names[count.name]
            names[count.name] = value
            undo = lambda: names.__setitem__(count.name, before)  # noqa: E731
        else:
            code = plain.__code__
            constants = tuple(value if _is_number(item) and item == count.value else item for item in code.co_consts)
            plain.__code__ = code.replace(co_consts=constants)
            undo = lambda: setattr(plain, "__code__", code)  # noqa: E731
    try:
        yield
    finally:
        if undo is not None:
            undo()


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bound(function: Any, built: Built) -> inspect.BoundArguments | None:
    try:
        bound = inspect.signature(function).bind(*built.args, **built.kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return bound


def _arguments(function: Any, built: Built) -> Iterator[Count]:
    bound = _bound(function, built)
    for name, value in ({} if bound is None else bound.arguments).items():
        if _is_number(value) and value >= 1:
            yield Count("argument", name, value)


def _set_argument(function: Any, built: Built, name: str, value: int) -> None:
    bound = _bound(function, built)
    assert bound is not None
    bound.arguments[name] = value
    built.args, built.kwargs = list(bound.args), dict(bound.kwargs)


def _attributes(built: Built) -> Iterator[Count]:
    def look(value: Any, path: tuple[Any, ...]) -> Iterator[Count]:
        if isinstance(value, torch.Tensor | type | list | tuple | str) or len(path) > _DEPTH + 1:
            return
        items = value if type(value) is dict else getattr(value, "__dict__", None)
        if type(items) is not dict:
            return
        for name, item in list(items.items()):
            if not isinstance(name, str) or name.startswith("__"):
                continue
            if _is_number(item) and item >= 1:
                yield Count("attribute", name, item, (*path, name))
            elif not isinstance(item, torch.nn.Module | torch.optim.Optimizer):
                yield from look(item, (*path, name))

    for number, value in enumerate(built.args):
        if not isinstance(value, torch.optim.Optimizer):
            yield from look(value, (number,))
    for name, value in built.kwargs.items():
        if not isinstance(value, torch.optim.Optimizer):
            yield from look(value, (name,))


def _set_attribute(built: Built, path: tuple[Any, ...], value: int) -> None:
    owner: Any = built.args[path[0]] if isinstance(path[0], int) else built.kwargs[path[0]]
    for name in path[1:-1]:
        owner = owner[name] if type(owner) is dict else vars(owner)[name]
    if type(owner) is dict:
        owner[path[-1]] = value
    else:
        setattr(owner, path[-1], value)


def _globals(function: Any) -> Iterator[Count]:
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if not isinstance(code, CodeType):
        return
    for name in dict.fromkeys(code.co_names):
        value = plain.__globals__.get(name)
        if _is_number(value) and value >= 1:
            yield Count("global", name, value)


def _constants(function: Any) -> Iterator[Count]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if isinstance(code, CodeType):
        for value in dict.fromkeys(item for item in code.co_consts if _is_number(item)):
            if value > 1:
                yield Count("constant", str(value), value)
