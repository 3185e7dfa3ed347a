"""The other values of mode arguments: which are worth a run of their own.

A mode argument chooses between ways of computing: a `Literal`, an enum, a text compared with constants, a flag that a
call tests. Says what to try, one argument changed at a time; whether a variant runs is for the caller to see.
"""

from __future__ import annotations

import ast
import copy
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from gradproof_probe.harness.argument_values import resolved_annotation
from gradproof_probe.harness.constructor_parameters import KnownParameter, known_parameters
from gradproof_probe.harness.objects import reference
from gradproof_probe.harness.recipe import Variant, names_of
from gradproof_probe.harness.usage import positional_parameters, usage_of
from gradproof_probe.importing import Resolved

MOST: Final = 12
_PER_ARGUMENT: Final = 6
_REDUCTIONS: Final = ("mean", "sum", "none")
# Flags that change what is printed, kept or checked and nothing that has a gradient.
_NO_MODE: Final = re.compile(
    r"verbose|debug|validate|check|log|device|dtype|compile|jit|cache|download|pretrained|inplace"
)


def mode_options(resolved: Resolved, constructor: str | None, inputs: tuple[str, ...]) -> list[Variant]:
    """At most twelve variants of a recipe: texts and enums before flags, the constructor's before the call's."""
    names = names_of(resolved)
    found: list[tuple[int, Variant]] = []
    if resolved.target.kind == "module" and constructor is not None:
        call = _call_of(constructor)
        if call is not None:
            for option in _options(known_parameters(resolved.value), _given(call, resolved.value), names):
                changed = _changed_call(call, resolved.value, option)
                found.append((option.rank, Variant(changed, inputs, option.text)))
    function = _called(resolved)
    if function is not None:
        found += [
            (option.rank, Variant(constructor, arguments, option.text))
            for option in _options(_of_call(function), _given_inputs(inputs, function), names)
            if (arguments := _changed_inputs(inputs, function, option, by_name=_takes_names(resolved))) is not None
        ]
    found.sort(key=lambda item: item[0])
    return [variant for _, variant in found[:MOST]]


@dataclass(frozen=True, slots=True)
class _Option:
    """`name=value`. Rank 0: one of several words; 1: a flag."""

    name: str
    value: str
    rank: int

    @property
    def text(self) -> str:
        return f"{self.name}={self.value}"


def _options(parameters: list[KnownParameter], given: Mapping[str, str], names: Mapping[str, Any]) -> Iterator[_Option]:
    for known in parameters:
        default = known.parameter.default
        current = given.get(known.name, repr(default))
        if _NO_MODE.search(known.name):
            continue
        words = dict.fromkeys(_words(known, names))
        for value in islice((word for word in words if not _same(word, current, names)), _PER_ARGUMENT):
            yield _Option(known.name, value, 0)
        if not words and known.usage.decides and current in ("True", "False"):
            yield _Option(known.name, "False" if current == "True" else "True", 1)


def _same(one: str, other: str, names: Mapping[str, Any]) -> bool:
    if one == other:
        return True
    try:
        return bool(eval(one, dict(names)) == eval(other, dict(names)))
    except BaseException:
        return False


def _words(known: KnownParameter, names: Mapping[str, Any]) -> Iterator[str]:
    """The values that an argument chooses from, as expressions. Numbers are sizes, not modes."""
    annotation = resolved_annotation(known.parameter, known.function)
    for arm in _arms(annotation):
        if typing.get_origin(arm) is typing.Literal:
            yield from (repr(value) for value in typing.get_args(arm) if isinstance(value, str | int))
        elif isinstance(arm, type) and issubclass(arm, enum.Enum):
            yield from (text for member in arm if (text := reference(member, names)) is not None)
    for option in known.usage.options:
        if isinstance(option, enum.Enum):
            text = reference(option, names)
            if text is not None:
                yield text
        elif isinstance(option, str) and option:
            yield repr(option)
    default = known.parameter.default
    if known.name == "reduction" or default in _REDUCTIONS[:2]:
        yield from map(repr, _REDUCTIONS)
    if isinstance(default, str):
        yield from map(repr, _documented(known, default))
    if isinstance(default, enum.Enum):
        yield from (text for member in type(default) if (text := reference(member, names)) is not None)


def _arms(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return list(typing.get_args(annotation))
    return [annotation]


def _documented(known: KnownParameter, default: str) -> list[str]:
    """Quoted words beside the default in what the docstring says of the argument."""
    owner = known.function
    text = inspect.getdoc(owner) or ""
    qualname = getattr(owner, "__qualname__", "")
    if qualname.endswith(".__init__"):
        cls: Any = owner.__globals__.get(qualname.partition(".")[0])
        text += "\n" + (inspect.getdoc(cls) or "" if isinstance(cls, type) else "")
    match = re.search(
        rf"^[ \t]*{re.escape(known.name)}\b.*(?:\n(?![ \t]*\w+ ?(?:\(.*?\))?:|\s*$).*)*", text, re.MULTILINE
    )
    words = re.findall(r"[\"'`]([\w-]+)[\"'`]", match[0]) if match else []
    return words if default in words and len(set(words)) <= _PER_ARGUMENT else []


# --- The constructor --------------------------------------------------------------------------------------------------


def _call_of(constructor: str) -> ast.Call | None:
    try:
        node = ast.parse(constructor, mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args) else None


def _given(call: ast.Call, cls: type) -> dict[str, str]:
    names = [parameter.name for parameter in positional_parameters(cls)]
    given = {name: ast.unparse(value) for name, value in zip(names, call.args, strict=False)}
    return given | {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}


def _changed_call(call: ast.Call, cls: type, option: _Option) -> str:
    changed = copy.deepcopy(call)
    value = ast.parse(option.value, mode="eval").body
    names = [parameter.name for parameter in positional_parameters(cls)]
    if option.name in names[: len(changed.args)]:
        changed.args[names.index(option.name)] = value
    else:
        changed.keywords = [k for k in changed.keywords if k.arg != option.name]
        changed.keywords.append(ast.keyword(option.name, value))
    return ast.unparse(changed)


# --- The call ---------------------------------------------------------------------------------------------------------


def _called(resolved: Resolved) -> Callable[..., Any] | None:
    value = resolved.value
    function = value if resolved.target.kind == "function" else getattr(value, "forward", None)
    return function if isinstance(function, types.FunctionType) else None


def _takes_names(resolved: Resolved) -> bool:
    return resolved.target.kind != "autograd_function"  # Function.apply takes positions only


def _own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = positional_parameters(function, every=True)
    return parameters[1:] if parameters and parameters[0].name == "ctx" else parameters


def _of_call(function: Callable[..., Any]) -> list[KnownParameter]:
    usage = usage_of(function).of
    return [KnownParameter(p, usage[p.name], function) for p in _own_parameters(function) if p.name in usage]


def _named(expression: str) -> str | None:
    match = re.match(r"(\w+)=(?!=)", expression)
    return match[1] if match else None


def _given_inputs(inputs: tuple[str, ...], function: Callable[..., Any]) -> dict[str, str]:
    given: dict[str, str] = {}
    names = [parameter.name for parameter in _own_parameters(function)]
    for index, expression in enumerate(inputs):
        name = _named(expression)
        if name is not None:
            given[name] = expression.partition("=")[2]
        elif index < len(names) and not expression.startswith("*"):
            given[names[index]] = expression
    return given


def _changed_inputs(
    inputs: tuple[str, ...], function: Callable[..., Any], option: _Option, *, by_name: bool
) -> tuple[str, ...] | None:
    changed = list(inputs)
    for index, expression in enumerate(inputs):
        if _named(expression) == option.name:
            changed[index] = option.text
            return tuple(changed)
        if expression.startswith("*"):
            return None
    names = [parameter.name for parameter in _own_parameters(function)]
    positional = [expression for expression in inputs if _named(expression) is None]
    if option.name in names[: len(positional)]:
        changed[names.index(option.name)] = option.value
        return tuple(changed)
    return (*changed, option.text) if by_name else None
