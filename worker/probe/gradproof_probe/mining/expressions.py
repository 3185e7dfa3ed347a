"""Values that were seen in a call, as expressions: evaluated in the target module's own names plus `torch`.

What can't be written down (an open file, a lambda of the example, an object whose construction nobody saw) makes the
call unusable, with the reason. Expressions reach names outside the target's module by importing them.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import math
import pathlib
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from gradproof_probe.mining.drawing import Resize, UndrawableError, tensor_expression

DEPTH: Final = 6
ITEMS: Final = 64
LONGEST: Final = 3000  # characters; the worker cuts expressions at 4,000


class UnwritableError(ValueError):
    """A value that no expression stands for; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call was given: by position (in order), then by name. Defaults that weren't given are left out."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any]


class Constructions(Protocol):
    """What is known about how objects were built."""

    def of(self, value: object) -> Arguments | None: ...


@dataclass(slots=True)
class Writer:
    """Writes expressions for one call. `names` are those of the target's module."""

    names: Mapping[str, Any]
    constructions: Constructions
    exact: bool = False
    resize: Resize = field(default=lambda shape: shape)

    def call(self, callee: str, arguments: Arguments) -> str:
        return _short(f"{callee}({', '.join(self.arguments(arguments))})")

    def arguments(self, arguments: Arguments) -> tuple[str, ...]:
        texts = [self.write(value) for value in arguments.positional]
        texts += [f"{name}={self.write(value)}" for name, value in arguments.named.items()]
        return tuple(texts)

    def write(self, value: Any, depth: int = 0) -> str:
        """Raise `UnwritableError`."""
        if depth > DEPTH:
            raise UnwritableError("a value nested too deeply")
        for write in (_plain, _torch_value):
            text = write(self, value)
            if text is not None:
                return _short(text)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self.reach(value)
        return _short(self._composed(value, depth))

    def reach(self, value: Any) -> str:
        """A name that leads to this very class or function from the target's module."""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if not isinstance(name, str) or "<" in name:
            raise UnwritableError(f"{_kind(value)} without a name that can be reached")
        if self.names.get(name) is value and name.isidentifier():
            return name
        if getattr(builtins, name, None) is value and name not in self.names:
            return name
        for path in _torch_paths(getattr(value, "__name__", name)):
            if _follow(torch, path) is value:
                return f"torch.{path}"
        module = getattr(value, "__module__", None)
        if isinstance(module, str) and module in sys.modules and _follow(sys.modules[module], name) is value:
            if module.startswith("gradproof_example"):
                raise UnwritableError(f"{name}, which only the example itself defines")
            if module.partition(".")[0] == "torch":
                return f"{module}.{name}"
            return f'__import__("importlib").import_module({module!r}).{name}'
        raise UnwritableError(f"{name}, which isn't found where it says that it is defined")

    def _composed(self, value: Any, depth: int) -> str:
        def item(inner: Any) -> str:
            return self.write(inner, depth + 1)

        kind = type(value)
        if kind in (list, tuple, set, frozenset, torch.Size):
            return _sequence(kind, [item(inner) for inner in _bounded(value)])
        if kind in (dict, OrderedDict) or type(value) is types.MappingProxyType:
            text = ", ".join(f"{item(key)}: {item(inner)}" for key, inner in _bounded(value.items()))
            return f'__import__("collections").OrderedDict({{{text}}})' if kind is OrderedDict else f"{{{text}}}"
        if isinstance(value, torch.nn.Module):
            return self._constructed(value, depth)
        if isinstance(value, enum.Enum):
            return f"{self.reach(kind)}[{value.name!r}]"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self.reach(kind)}({', '.join(item(inner) for inner in value)})"
        if isinstance(value, functools.partial):
            whole = [item(value.func), *map(item, value.args)]
            whole += [f"{name}={item(inner)}" for name, inner in value.keywords.items()]
            return f'__import__("functools").partial({", ".join(whole)})'
        if isinstance(value, types.MethodType):
            return f"{item(value.__self__)}.{value.__name__}"
        if self.constructions.of(value) is not None:
            return self._constructed(value, depth)
        if dataclasses.is_dataclass(value):
            parts = [f"{f.name}={item(getattr(value, f.name))}" for f in dataclasses.fields(value) if f.init]
            return f"{self.reach(kind)}({', '.join(parts)})"
        return self._from_elements(value, depth)

    def _constructed(self, value: Any, depth: int) -> str:
        arguments = self.constructions.of(value)
        name = type(value).__name__
        if arguments is None:
            raise UnwritableError(f"a {name} whose construction wasn't seen")
        texts = [self.write(inner, depth + 1) for inner in arguments.positional]
        texts += [f"{key}={self.write(inner, depth + 1)}" for key, inner in arguments.named.items()]
        return f"{self.reach(type(value))}({', '.join(texts)})"

    def _from_elements(self, value: Any, depth: int) -> str:
        """Subclasses of tuple, list, dict and str that can be built again from what they hold or from their text."""
        kind = type(value)
        bases: tuple[Callable[[Any], Any], ...] = (tuple, list, dict, str)
        for base in bases:
            if isinstance(value, base):  # type: ignore[arg-type]
                for content in (str(value), base(value)):
                    if _rebuilds(kind, content, value):
                        return f"{self.reach(kind)}({self.write(content, depth + 1)})"
        raise UnwritableError(f"{_kind(value)} whose construction wasn't seen")


def _plain(writer: Writer, value: Any) -> str | None:
    del writer
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes, range):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if kind is complex:
        return repr(value)
    if kind is slice:
        return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
    if isinstance(value, pathlib.PurePath):
        raise UnwritableError("a path of the file system")
    return None


def _torch_value(writer: Writer, value: Any) -> str | None:
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, torch.device):
        return "torch.device('cpu')"
    if isinstance(value, torch.Generator):
        return "torch.Generator()"
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UnwritableError(f"a tensor of the class {type(value).__name__}")
        text = _drawn(writer, value)
        return f"torch.nn.Parameter({text})" if isinstance(value, torch.nn.Parameter) else text
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return repr(value.item())
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc":
        tensor = torch.from_numpy(value.copy())
        return f"({_drawn(writer, tensor)}).to({tensor.dtype}).numpy()"
    return None


def _drawn(writer: Writer, tensor: torch.Tensor) -> str:
    try:
        return tensor_expression(tensor, exact=writer.exact, resize=writer.resize)
    except UndrawableError as error:
        raise UnwritableError(str(error)) from error


def _sequence(kind: type, texts: Sequence[str]) -> str:
    inner = ", ".join(texts)
    if kind is list:
        return f"[{inner}]"
    if kind is tuple:
        return f"({inner},)" if len(texts) == 1 else f"({inner})"
    if kind is torch.Size:
        return f"torch.Size([{inner}])"
    return f"{kind.__name__}([{inner}])"


def _bounded(items: Any) -> list[Any]:
    found = list(items)
    if len(found) > ITEMS:
        raise UnwritableError(f"a container of {len(found)} items")
    return found


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise UnwritableError(f"an expression of {len(text)} characters")
    return text


def _kind(value: Any) -> str:
    return f"a value of {type(value).__module__}.{type(value).__qualname__}"


def _torch_paths(name: str) -> tuple[str, ...]:
    return (f"nn.{name}", f"nn.functional.{name}", name, f"optim.{name}", f"nn.init.{name}", f"distributions.{name}")


def _follow(start: Any, path: str) -> Any:
    for part in path.split("."):
        start = getattr(start, part, None)
        if start is None:
            return None
    return start


def _rebuilds(kind: type, content: Any, value: Any) -> bool:
    try:
        made = kind(content)
        return type(made) is kind and bool(made == value)
    except Exception:
        return False
