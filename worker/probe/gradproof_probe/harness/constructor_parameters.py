"""The parameters that a class is constructed with, those that reach its parents through `**kwargs` included."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradproof_probe.harness.argument_values import resolved_annotation
from gradproof_probe.harness.usage import Usage, initialiser, positional_parameters, usage_of

SINKS: Final = 4  # `**kwargs` handed on within `**kwargs`


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Parameters without `self`; an empty list where there is no signature to read."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:  # a signature of the submitted code's own making may raise anything
        return []
    return parameters[1:] if parameters and parameters[0].name in ("self", "cls") else parameters


@dataclass(frozen=True, slots=True)
class KnownParameter:
    """A parameter, how it is used, and the function whose module its annotation is written in."""

    parameter: inspect.Parameter
    usage: Usage
    function: Any

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def required(self) -> bool:
        return self.parameter.default is inspect.Parameter.empty


def known_parameters(cls: type) -> list[KnownParameter]:
    found = initialiser(cls)
    if found is None:
        return [
            KnownParameter(p, Usage(), None)
            for p in parameters_of(inspect.getattr_static(cls, "__init__"))
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    usage = usage_of(cls)
    given = _type_arguments(cls)
    known = {
        p.name: KnownParameter(_of_class(p, cls, found[1], given), usage.of.get(p.name, Usage()), found[1])
        for p in positional_parameters(cls, every=True)
    }
    if usage.kwargs is not None:
        _add_sinks(cls, known, frozenset(), SINKS)
    return list(known.values())


def _type_arguments(cls: type) -> dict[Any, Any]:
    """What a class and its parents give for the type variables of their generic bases: `Model(Base[Config])`."""
    found: dict[Any, Any] = {}
    for owner in cls.__mro__:
        for base in vars(owner).get("__orig_bases__", ()):
            variables = getattr(typing.get_origin(base), "__parameters__", ())
            for variable, argument in zip(variables, typing.get_args(base), strict=False):
                if not isinstance(argument, typing.TypeVar):
                    found.setdefault(variable, argument)
    return found


def _of_class(parameter: inspect.Parameter, cls: type, function: Any, given: Mapping[Any, Any]) -> inspect.Parameter:
    """The parameter as the class means it: with its type arguments, a field's text read where the field stands."""
    annotation = parameter.annotation
    if isinstance(annotation, str) and function.__name__ == "__init__" and parameter.name in _fields(cls):
        owner = next((c for c in cls.__mro__ if parameter.name in vars(c).get("__annotations__", {})), cls)
        names = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
        try:
            annotation = eval(annotation, dict(names))
        except BaseException:  # submitted annotations may raise anything; the text stays then
            annotation = parameter.annotation
    elif isinstance(annotation, str) and given:
        annotation = resolved_annotation(parameter, function)
        annotation = annotation if isinstance(annotation, typing.TypeVar) else parameter.annotation
    if isinstance(annotation, typing.TypeVar):
        annotation = given.get(annotation, annotation)
    return parameter.replace(annotation=annotation)


def _fields(cls: type) -> Mapping[str, Any]:
    fields = getattr(cls, "__dataclass_fields__", {})
    return fields if isinstance(fields, dict) else {}


def _add_sinks(callee: Any, known: dict[str, KnownParameter], explicit: frozenset[str], depth: int) -> None:
    """What a callable's `**kwargs` must or may hold: keys that it takes out, parameters of where the rest goes."""
    usage = usage_of(callee)
    for key, used in usage.required_keys.items():
        if key not in known and key not in explicit:
            known[key] = KnownParameter(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY), used, None)
    for sink, given in usage.sinks:
        inner = usage_of(sink)
        for parameter in positional_parameters(sink, every=True):
            if parameter.name not in known and parameter.name not in given | explicit:
                by_keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                found = initialiser(sink) if isinstance(sink, type) else None
                known[parameter.name] = KnownParameter(
                    by_keyword, inner.of.get(parameter.name, Usage()), found[1] if found else sink
                )
        if inner.kwargs is not None and depth > 0:
            _add_sinks(sink, known, given | explicit, depth - 1)


def has_packed(cls: type) -> bool:
    """Whether it takes `*args`: what goes there is not among the parameters."""
    return any(p.kind is p.VAR_POSITIONAL for p in parameters_of(inspect.getattr_static(cls, "__init__")))
