"""Names for classes in expressions, and objects that have the attributes which a parameter's use asks for.

An object is composed of a class of the same package where one has them all; otherwise it is made for the purpose: a
layer with these attributes, or a plain namespace. Finds and names classes; constructs nothing itself.
"""

from __future__ import annotations

import ast
import enum
import inspect
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import torch

from gradproof_probe.harness.sources import function_node
from gradproof_probe.harness.usage import package_modules

MOST_CLASSES: Final = 4  # tried for one parameter: the first that has everything is mostly right
_MOST_DERIVED: Final = 200  # looked at: classes of a large package that derive from its base


def reference(value: Any, names: Mapping[str, Any]) -> str | None:
    """An expression for a class, function or enum member, by the names at hand or through its module."""
    if isinstance(value, enum.Enum):
        owner = reference(type(value), names)
        return f"{owner}.{value.name}" if owner is not None else None
    if isinstance(value, torch.dtype):
        return str(value)
    qualname = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None)
    if not qualname or not module or "<" in qualname:
        return None
    top, _, rest = qualname.partition(".")
    if rest == "" and names.get(top) is value:
        return top
    if module == "builtins":
        return qualname
    if module.startswith("torch.nn.modules") and getattr(torch.nn, qualname, None) is value:
        return f"torch.nn.{qualname}"
    if module.partition(".")[0] == "torch":
        return f"{module}.{qualname}"
    return f"__import__({module!r}, fromlist=['_']).{qualname}"


def attributes_of(cls: type) -> frozenset[str]:
    """What instances of a class have: its own and its parents' names, and what their methods set on `self`."""
    if cls not in _ATTRIBUTES:
        _ATTRIBUTES[cls] = _attributes_of(cls)
    return _ATTRIBUTES[cls]


_ATTRIBUTES: dict[type, frozenset[str]] = {}


def _attributes_of(cls: type) -> frozenset[str]:
    found = set(dir(cls)) | {*getattr(cls, "__dataclass_fields__", {}), *getattr(cls, "__annotations__", {})}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for value in vars(owner).values():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            node = function_node(function) if isinstance(function, types.FunctionType) else None
            for part in ast.walk(node) if node is not None else ():
                match part:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                        found.add(name)
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="self"), attr="register_buffer" | "register_parameter"),
                        args=[ast.Constant(value=str(name)), *_],
                    ):
                        found.add(name)
    return frozenset(found)


def classes_with(
    package: str, attributes: Iterable[str], base: type, *, excluding: type | None, names: Mapping[str, Any]
) -> list[type]:
    """Concrete classes of the package that have all the attributes: those at hand first, then with few others."""
    wanted = frozenset(attributes)
    fitting = []
    for cls in classes_of(package):
        # By the order of parents, not by issubclass: a protocol answers that with an exception.
        related = excluding is not None and (excluding in cls.__mro__ or cls in excluding.__mro__)
        if base in cls.__mro__ and not related and not _is_abstract(cls) and wanted <= attributes_of(cls):
            fitting.append(cls)
    fitting.sort(key=lambda cls: (names.get(cls.__name__) is not cls, len(attributes_of(cls)), cls.__qualname__))
    return fitting[:MOST_CLASSES]


@lru_cache(maxsize=8)
def classes_of(package: str) -> tuple[type, ...]:
    """Classes that the loaded modules of a package define, each once, in the order of modules and names."""
    found: dict[type, None] = {}
    for module in package_modules(package):
        for _, value in sorted(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                found[value] = None
    return tuple(found)


def concrete(cls: type, package: str) -> list[type]:
    """The class itself, or where it is a base the classes that derive from it: of the package, else of its own."""
    if not _is_abstract(cls) and not leaves_to_others(cls):
        return [cls]
    derived = [c for c in classes_of(package) if cls in c.__mro__ and c is not cls and not _is_abstract(c)]
    if not derived:
        derived = _simplest(cls, [c for c in _derived(cls) if not _is_abstract(c) and not leaves_to_others(c)])
    return [*derived[:MOST_CLASSES], *(() if _is_abstract(cls) else (cls,))]


def leaves_to_others(cls: type) -> bool:
    """Whether a method or property does nothing but raise NotImplementedError: a base class by its source.

    Of a module only its forward counts: other methods of it are often offered to some of its kind alone.
    """
    is_module = torch.nn.Module in cls.__mro__
    if is_module and getattr(cls, "forward", None) is torch.nn.Module.forward:
        return True
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] in ("torch", "builtins", "typing"):
            continue
        for name, value in vars(owner).items():
            if inspect.getattr_static(cls, name, None) is not value or (is_module and name != "forward"):
                continue
            function = value.fget if isinstance(value, property) else value
            node = function_node(function) if isinstance(function, types.FunctionType) else None
            if node is not None and _only_raises(node.body):
                return True
    return False


def _only_raises(body: list[ast.stmt]) -> bool:
    match [statement for statement in body if not isinstance(getattr(statement, "value", None), ast.Constant)]:
        case [ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError")))]:
            return True
    return False


def _derived(cls: type) -> list[type]:
    """The loaded classes of the class's own package that derive from it, in the order in which they were defined."""
    top = cls.__module__.partition(".")[0]
    found: dict[type, None] = {}
    waiting: list[type] = type.__subclasses__(cls)
    while waiting and len(found) < _MOST_DERIVED:
        derived = waiting.pop(0)
        if derived not in found and derived.__module__.partition(".")[0] == top and derived.__name__[:1] != "_":
            found[derived] = None
            waiting += type.__subclasses__(derived)
    return list(found)


def _simplest(base: type, derived: list[type]) -> list[type]:
    """Those made of plain values first, and one that is made of others of its kind before the last of them."""
    of_others = [cls for cls in derived if _is_made_of(cls, base)]
    plain = [cls for cls in derived if cls not in of_others]
    return [*plain[: MOST_CLASSES - 1], *of_others[:1], *plain[MOST_CLASSES - 1 :], *of_others[1:]]


def _is_made_of(cls: type, base: type) -> bool:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except Exception:  # a signature of the submitted code's own making may raise anything
        return False
    return any(base.__name__ in str(p.annotation) for p in parameters if p.annotation is not p.empty)


def _is_abstract(cls: type) -> bool:
    return inspect.isabstract(cls) or bool(vars(cls).get("_is_protocol"))


def namespace(values: Mapping[str, str]) -> str:
    return f"__import__('types').SimpleNamespace({', '.join(f'{name}={text}' for name, text in values.items())})"


def layer_with(values: Mapping[str, str], size: str = "8, 8") -> str:
    """A linear layer that also has these attributes."""
    items = ", ".join(f"{name!r}: {text}" for name, text in values.items())
    return f"type('Layer', (torch.nn.Linear,), {{{items}}})({size})"
