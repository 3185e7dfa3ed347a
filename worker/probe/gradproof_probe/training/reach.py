"""Which names the submitted code behind a function uses: whether it can do a thing at all, before it is run.

Goes through code objects, into functions, classes and modules of the source that they name. What is reached only by
values that are handed in is not seen. This module must not run submitted code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from gradproof_probe.gradients.attribution import relative

_MOST_FUNCTIONS: Final = 300


def names_used(function: Any, source_root: Path, owner: type | None = None) -> frozenset[str]:
    """All names and attributes in the code of `function` and of the submitted code that it leads to.

    `owner`: the class that it is a method of, so that `self.helper()` is followed.
    """
    found: set[str] = set()
    seen: set[int] = set()
    pending: list[tuple[Any, type | None]] = [(function, owner)]
    while pending and len(seen) < _MOST_FUNCTIONS:
        item, of = pending.pop()
        plain = _plain(item)
        if plain is None or id(plain) in seen or relative(plain.__code__.co_filename, source_root) is None:
            continue
        seen.add(id(plain))
        names = names_of_code(plain.__code__)
        found |= names
        pending.extend(_led_to(plain, names, of, source_root))
    return frozenset(found)


def names_of_code(code: CodeType) -> set[str]:
    """All names and attributes in one function and the functions inside it."""
    return {name for item in _codes(code) for name in (*item.co_names, *item.co_freevars)}


def methods(kind: type) -> list[Callable[..., Any]]:
    """The functions in the body of a class and of its bases, those of static and class methods too."""
    found: list[Callable[..., Any]] = []
    for base in kind.__mro__:
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function):
                found.append(function)
    return found


def _plain(item: Any) -> FunctionType | None:
    try:
        unwrapped = inspect.unwrap(getattr(item, "__func__", item))
    except Exception:  # a stand-in for a missing module raises when it is touched
        return None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _led_to(
    function: FunctionType, names: set[str], owner: type | None, source_root: Path
) -> Iterator[tuple[Any, type | None]]:
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue
    values += [
        vars(value)[name] for value in values if isinstance(value, ModuleType) for name in names & set(vars(value))
    ]
    for value in values:
        if inspect.isclass(value) and not str(value.__module__).startswith("torch."):
            yield from ((method, value) for method in methods(value) if _is_submitted(method, source_root))
        elif inspect.isfunction(value):
            yield value, None
    for kind in owner.__mro__ if owner is not None else ():
        for name in names & set(vars(kind)):
            value = vars(kind)[name]
            yield getattr(value, "fget", value) if isinstance(value, property) else value, owner


def _is_submitted(function: Callable[..., Any], source_root: Path) -> bool:
    plain = _plain(function)
    return plain is not None and relative(plain.__code__.co_filename, source_root) is not None
