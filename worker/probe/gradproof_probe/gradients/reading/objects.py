"""Looking at the objects of the running program without waking them: no property, no lazy import, no `__getattr__`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any, Final

import torch

from gradproof_probe.gradients.reading.meanings import UNKNOWN, Known, Meaning

# What is read as it stands, not as a variable that holds a value.
_FIXED: Final = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
_MISSING: Final = object()


def attribute(owner: Any, name: str) -> Meaning:
    """What `owner.name` is, with its origin where it may be a variable of the program."""
    value = _found(owner, name)
    if value is _MISSING:
        return UNKNOWN
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property | functools.cached_property):
        return UNKNOWN
    if isinstance(value, _FIXED):
        return Known(value)
    return Known(value, (id(owner), name))


def _found(owner: Any, name: str) -> Any:
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _MISSING)
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in vars(base):
                return vars(base)[name]
        return _MISSING
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        own = {}
    if name in own:
        return own[name]
    if isinstance(owner, torch.nn.Module):
        for kept in ("_modules", "_parameters", "_buffers"):
            if name in own.get(kept, {}):
                return own[kept][name]
    return _found(type(owner), name)


def unwrapped(function: Any, *, entirely: bool = False) -> Any:
    """The function under methods, partials, and torch's decorators. None if there is no Python function.

    Decorators of the program are kept, as what they do belongs to what is read; `entirely` looks through them too.
    """
    for _ in range(16):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, types.FunctionType):
            inner = vars(function).get("__wrapped__")
            if inner is None or not (entirely or _is_torch(function)):
                return function
            function = inner
        else:
            return None
    return None


def _is_torch(function: types.FunctionType) -> bool:
    """By its globals: `functools.wraps` gives a wrapper the module of what it wraps."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0] == "torch"


def is_function_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def package(value: Any) -> str:
    """The top-level package that a class or function is from; "" for code without one."""
    name = getattr(value, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else ""


def may_be_read(function: types.FunctionType, starts: Iterable[types.FunctionType]) -> bool:
    """Only code of the packages that the reading began in is followed, and torch's never."""
    name = package(function)
    for start in starts:
        if function.__globals__ is start.__globals__ or (name and name == package(start) and name not in NEVER):
            return True
    return False


NEVER: Final = frozenset({"torch", "builtins", "typing", "functools", "math", "numpy", "gradproof_probe"})


def parameters(code: types.CodeType) -> tuple[list[str], str | None, list[str], str | None]:
    """Positional names, the name of `*args`, keyword-only names, the name of `**kwargs`."""
    names = code.co_varnames
    count, only = code.co_argcount, code.co_kwonlyargcount
    rest = names[count + only] if code.co_flags & inspect.CO_VARARGS else None
    after = count + only + (rest is not None)
    more = names[after] if code.co_flags & inspect.CO_VARKEYWORDS else None
    return list(names[:count]), rest, list(names[count : count + only]), more
