"""What the code of a Function says of the circumstances in which it does something else.

Most wrong backwards that ordinary inputs don't show are wrong under a condition that stands in the code: above 65536
elements, for three dimensions, when the incoming gradient is all ones. Reading the condition is what finds them
(checks facts 0.7). Reading runs nothing of what it reads, and a mistake in it costs a situation tried in vain, so it
guesses where it doesn't know. It must never raise, whatever the code.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from gradproof_probe.gradients.reading import objects
from gradproof_probe.gradients.reading.clue import Clue, Clues
from gradproof_probe.gradients.reading.hints import read_expression
from gradproof_probe.gradients.reading.interpreter import Interpreter
from gradproof_probe.gradients.reading.meanings import Known

__all__ = ["Clue", "Clues", "clues_from_hints", "read_clues"]

NOTHING: Final = Clues()
# By the class or function; its methods' code tells whether it is still the one that was read.
_READ: weakref.WeakKeyDictionary[Any, tuple[tuple[types.CodeType, ...], Clues]] = weakref.WeakKeyDictionary()


def read_clues(function: type[torch.autograd.Function] | Callable[..., Any]) -> Clues:
    """The predicates and constants of a Function's forward and backward, or of a function, and of their helpers."""
    wanted: Any = function
    owner = getattr(function, "__self__", None)
    if objects.is_function_class(owner) and getattr(function, "__name__", "") == "apply":
        wanted = owner
    try:
        codes = _codes(wanted)
        kept = _READ.get(wanted)
        if kept is not None and kept[0] == codes:
            return kept[1]
        found = _read(wanted)
        _READ[wanted] = (codes, found)
    except TypeError:  # no weak reference can be had to it
        return _read(wanted)
    return found


def clues_from_hints(hints: Iterable[Any]) -> Clues:
    """From what a user says: numbers, and predicates as source, such as "x.numel() > 65536" or "(g == 1).all()"."""
    found: list[Clue] = []
    numbers: list[float] = []
    for hint in hints:
        if isinstance(hint, bool) or hint is None:
            continue
        if isinstance(hint, int | float):
            numbers.append(float(hint))
        elif isinstance(hint, Clue):
            found.append(hint)
        elif isinstance(hint, str):
            read = read_expression(hint)
            found += read.found
            numbers += read.numbers
    return Clues(tuple(found), tuple(dict.fromkeys(numbers)))


def _codes(function: Any) -> tuple[types.CodeType, ...]:
    if isinstance(function, type):
        methods = [objects.attribute(function, name) for name in ("forward", "setup_context", "backward", "vjp")]
        functions = [objects.unwrapped(item.value) for item in methods if isinstance(item, Known)]
    else:
        functions = [objects.unwrapped(function)]
    return tuple(item.__code__ for item in functions if item is not None)


def _read(function: Any) -> Clues:
    reader: Interpreter | None = None
    try:
        if objects.is_function_class(function):
            forward = objects.attribute(function, "forward")
            start = objects.unwrapped(forward.value) if isinstance(forward, Known) else None
            if start is None:
                return NOTHING
            reader = Interpreter(start, "forward")
            reader.function_class(function, None, {})
        else:
            own = getattr(function, "__self__", None)
            if isinstance(function, torch.nn.Module):
                own, function = function, type(function).forward
            elif not isinstance(function, types.FunctionType | types.MethodType) and callable(function):
                called = objects.attribute(type(function), "__call__")
                if isinstance(called, Known) and isinstance(called.value, types.FunctionType):
                    own, function = function, called.value
            start = objects.unwrapped(function)
            if start is None:
                return NOTHING
            reader = Interpreter(start, start.__name__)
            reader.plain(start, own if not isinstance(own, types.ModuleType) else None)
    except Exception:
        # Whatever the code does to its reader, what was noted until then stands.
        return reader.finished() if reader is not None else NOTHING
    return reader.finished()
