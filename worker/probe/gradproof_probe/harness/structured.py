"""Arguments by their annotations: numbers, texts, options, lists, dicts, and the classes that hold tensors."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.harness import names
from gradproof_probe.harness.arguments import Argument
from gradproof_probe.harness.demand import demands
from gradproof_probe.harness.values import Parameter

DEPTH: Final = 3  # of classes within classes
_LISTS: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Iterator, set, frozenset)
_DICTS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_MODULE: Final = "torch.nn.Linear(8, 8)"
_PLAIN: Final[dict[Any, str]] = {
    torch.dtype: "torch.get_default_dtype()",
    torch.device: "torch.device('cpu')",
    torch.Size: "torch.Size([2, 3])",
    torch.Generator: "torch.Generator()",
    torch.nn.Module: _MODULE,
}
TENSOR: Final = "tensor"


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """By parameter; those that can't be evaluated stay text."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # names that exist for type checkers only
        return dict(getattr(function, "__annotations__", {}))


def by_annotation(
    name: str, annotation: Any, use: Parameter, scope: dict[str, Any], depth: int = 0
) -> Argument | str | None:
    """The argument; `TENSOR` where a tensor is wanted; None where the annotation says nothing that we can make."""
    if annotation is inspect.Parameter.empty or annotation is Any or isinstance(annotation, str) or depth > DEPTH:
        return None
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return by_annotation(name, typing.get_args(annotation)[0], use, scope, depth)
    if origin is not None:
        return _by_origin(name, annotation, origin, use, scope, depth)
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, torch.Tensor) or hasattr(annotation, "dim_str"):
        return TENSOR
    if annotation in (bool, int, float, str, complex):
        return Argument(name, "literal", text=_scalar(name, annotation, use))
    if annotation in _PLAIN:
        return Argument(name, "literal", text=_PLAIN[annotation])
    if annotation in (list, tuple, *_LISTS):
        return _items(name, annotation, [], use, scope, depth)
    if annotation in _DICTS:
        return _dict(name, None, use, scope, depth)
    if annotation is collections.abc.Callable:
        return Argument(name, "literal", text=function_of_arity(use.arity))
    if issubclass(annotation, torch.distributions.Distribution):
        return _distribution(name, annotation)
    return _instance(name, annotation, use, scope, depth)


def _by_origin(
    name: str, annotation: Any, origin: Any, use: Parameter, scope: dict[str, Any], depth: int
) -> Argument | str | None:
    given = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        options = [item for item in given if item is not type(None)]
        found = [by_annotation(name, item, use, scope, depth) for item in options]
        if TENSOR in found:
            return TENSOR
        return next((item for item in found if item is not None), None)
    if origin is typing.Literal:
        return Argument(name, "literal", text=repr(given[0]))
    if origin is collections.abc.Callable:
        asked = given[0] if given and isinstance(given[0], list) else []
        return Argument(name, "literal", text=function_of_arity(len(asked) or use.arity))
    if origin in _DICTS:
        return _dict(name, given[1] if len(given) > 1 else None, use, scope, depth)
    if origin is type:
        return None
    if origin is tuple or origin in _LISTS:
        return _items(name, origin, list(given), use, scope, depth)
    return None


def _items(
    name: str, kind: Any, given: list[Any], use: Parameter, scope: dict[str, Any], depth: int
) -> Argument | str | None:
    count = use.count or max([*use.items, 1]) + 1
    if kind is tuple and given and given[-1] is not Ellipsis:
        wanted = given
    else:
        wanted = [given[0] if given else torch.Tensor] * min(max(count, 2), 8)
    made = []
    for index, item in enumerate(wanted):
        inner = by_annotation(f"{name}[{index}]", item, use.item(index), scope, depth + 1)
        if inner is None:
            return None
        made.append(Argument(f"{name}[{index}]") if isinstance(inner, str) else inner)
    return Argument(name, "tuple" if kind is tuple else "list", items=tuple(made))


def _dict(name: str, item: Any, use: Parameter, scope: dict[str, Any], depth: int) -> Argument | None:
    made = []
    for key in list(use.keys) or ["a", "b"]:
        inner = by_annotation(key, item, use.key(key), scope, depth + 1) if item is not None else TENSOR
        made.append(inner if isinstance(inner, Argument) else Argument(key))
    return Argument(name, "dict", items=tuple(made))


_OF_DISTRIBUTIONS: Final = (
    torch.distributions.Normal,
    torch.distributions.Categorical,
    torch.distributions.Bernoulli,
    torch.distributions.Beta,
    torch.distributions.Dirichlet,
)


def _distribution(name: str, cls: type) -> Argument | None:
    """One of torch's own, of the class that is asked for or one below it; its parameters are tensors of their own."""
    made = next((item for item in _OF_DISTRIBUTIONS if issubclass(item, cls)), None)
    if made is None:
        return None
    given = ["logits"] if "logits" in made.arg_constraints else list(made.arg_constraints)
    items = tuple(Argument(item, values="normal" if item in ("loc", "logits") else "positive") for item in given)
    return Argument(name, "object", text=f"__import__('torch').distributions.{made.__name__}", items=items)


def _instance(name: str, cls: type, use: Parameter, scope: dict[str, Any], depth: int) -> Argument | None:
    """An object of a class: its required fields or parameters by their own annotations."""
    expression = expression_of(cls, scope)
    if issubclass(cls, enum.Enum):
        return Argument(name, "literal", text=f"{expression}[{next(iter(cls)).name!r}]")
    if issubclass(cls, torch.nn.Module) or cls.__module__.partition(".")[0] in ("builtins", "torch"):
        return None
    hints = annotations_of(cls.__init__) if not hasattr(cls, "_fields") else annotations_of(cls)
    if dataclasses.is_dataclass(cls):
        fields = [
            item.name
            for item in dataclasses.fields(cls)
            if item.init and item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        ]
        hints = annotations_of(cls)
    else:
        try:
            parameters = inspect.signature(cls).parameters.values()
        except (TypeError, ValueError):
            return None
        fields = [
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    made = []
    for field, asked in demands(cls.__init__, None, fields, skip_first=True).items():
        # What the class itself does with it says more than what others do with what it keeps.
        if asked.says_something and field not in use.attributes:
            use.attributes[field] = asked
        inner = by_annotation(field, hints.get(field, Any), use.attribute(field), scope, depth + 1)
        if inner is None:
            text = names.scalar_input(field) or names.constructor_value(field)
            inner = (
                Argument(field, "literal", text=text, guessed=True) if text and field not in use.attributes else TENSOR
            )
        made.append(inner if isinstance(inner, Argument) else Argument(field))
    return Argument(name, "object", text=expression, items=tuple(made))


def expression_of(value: Any, scope: dict[str, Any]) -> str:
    """How a class or a function is called in the submitted module: by its name there, else by where it lives."""
    name = str(getattr(value, "__name__", ""))
    if scope.get(name) is value:
        return name
    return f"__import__('importlib').import_module({value.__module__!r}).{value.__qualname__}"


def _scalar(name: str, kind: type, use: Parameter) -> str:
    by_name = names.scalar_input(name.partition("[")[0])  # `kernel_size[0]` is as `kernel_size`
    if kind is str:
        if use.texts:
            return repr(use.texts[0])
        return by_name if by_name and by_name.startswith("'") else "'mean'"
    if kind is bool:
        return "False"
    if kind is int:
        return by_name if by_name is not None and by_name.lstrip("-").isdigit() else "2"
    if kind is complex:
        return "0.3 + 0.4j"
    try:
        float(by_name or "")
    except ValueError:
        return "0.7"
    return by_name or "0.7"


def function_of_arity(count: int) -> str:
    """A differentiable function of a tensor, or of all tensors among its arguments, as large as the last."""
    return "torch.tanh" if count <= 1 else _OF_ALL


_OF_ALL: Final = (
    "lambda *given, **_: (lambda xs: torch.tanh(xs[-1]) + sum(x.mean() for x in xs[:-1]))"
    "([x for x in given if torch.is_tensor(x) and x.is_floating_point()])"
)
