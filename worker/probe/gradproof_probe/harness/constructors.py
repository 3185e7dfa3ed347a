"""Constructor expressions to try: defaults, annotations, names; and a repair from what the constructor said."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import torch

from gradproof_probe.harness.names import SHRINKABLE, constructor_value

PLURAL: Final = re.compile(
    r"(dims|widths|channels_list|depths|layers_list|sizes|stages|filters|features_list|hidden_dims|fmaps)$"
)
_ANNOTATED: Final[tuple[tuple[str, str], ...]] = (
    ("bool", "False"),
    ("int", "8"),
    ("float", "0.5"),
)


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Parameters without `self`; an empty list where there is no signature to read."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    return parameters[1:] if parameters and parameters[0].name in ("self", "cls") else parameters


def constructor_candidates(cls: Any, qualname: str) -> Iterator[tuple[str, str]]:
    """(expression, provenance) in the order to try. Keyword arguments wherever the signature lets us."""
    parameters = [p for p in parameters_of(cls.__init__) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty]
    seen: set[str] = set()
    for values, provenance in _variants(parameters, required):
        expression = render(qualname, parameters, values)
        if expression not in seen:
            seen.add(expression)
            yield expression, provenance


def _variants(
    parameters: list[inspect.Parameter], required: list[inspect.Parameter]
) -> Iterator[tuple[dict[str, str], str]]:
    first = {p.name: value_for(p) for p in required}
    shrunken = {**first, **{p.name: value for p in parameters if (value := _shrink(p))}}
    if not required:
        yield {}, "constructor defaults"
        yield shrunken, "constructor defaults, large sizes made small"
    else:
        yield shrunken, "constructor arguments by name and annotation, large defaults made small"
        yield first, "constructor arguments by name and annotation"
    yield (
        {name: _larger(name, value) for name, value in shrunken.items()},
        "constructor arguments by name, larger images",
    )
    for number in ("8", "4", "16", "2", "3"):
        same = {p.name: number if _is_number(first[p.name]) else first[p.name] for p in required}
        yield same, f"constructor arguments all {number}"
    yield (
        {p.name: "torch.nn.Linear(8, 8)" if value_for(p) == "8" else value_for(p) for p in required},
        "constructor arguments with modules",
    )
    yield (
        {p.name: "(8, 8)" if _is_number(value_for(p)) else value_for(p) for p in required},
        "constructor arguments with pairs",
    )


def value_for(parameter: inspect.Parameter) -> str:
    """An expression for a required parameter: its annotation decides the kind, its name the size."""
    annotation = _annotation(parameter)
    by_name = constructor_value(parameter.name)
    if PLURAL.search(parameter.name) or re.search(r"tuple|list|sequence|iterable", annotation, re.IGNORECASE):
        return _sequence(parameter.name, annotation, by_name)
    if "Module" in annotation and "None" not in annotation:
        return by_name if by_name and "nn." in by_name else "torch.nn.Linear(8, 8)"
    if re.search(r"callable", annotation, re.IGNORECASE):
        return by_name if by_name and "nn." in by_name else "torch.tanh"
    if re.search(r"Tensor", annotation):
        return "torch.randn(8, 8)"
    for word, value in _ANNOTATED:
        if re.search(rf"\b{word}\b", annotation):
            return by_name if by_name is not None and _fits(by_name, word) else value
    if annotation == "str":
        return "'mean'" if parameter.name == "reduction" else "'relu'"
    return by_name if by_name is not None else "8"


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") + " " + str(annotation)


def _sequence(name: str, annotation: str, by_name: str | None) -> str:
    item = by_name if by_name is not None and _is_number(by_name) else "8"
    length = re.search(r"\[\s*int\s*,\s*int\s*,\s*int", annotation)
    count = 3 if length else 2
    return "(" + ", ".join([item] * count) + ")" if name else "()"


def _fits(value: str, word: str) -> bool:
    if word == "bool":
        return value in ("True", "False")
    if word == "int":
        return re.fullmatch(r"\d+", value) is not None
    return _is_number(value)


def _is_number(value: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", value) is not None


def _shrink(parameter: inspect.Parameter) -> str | None:
    """A small value for an integer default that is large, and for tuples of such; zero for dropout stays as it is."""
    default = parameter.default
    if default is inspect.Parameter.empty or isinstance(default, bool):
        return None
    if isinstance(default, int) and default > 16 and SHRINKABLE.search(parameter.name):
        value = constructor_value(parameter.name)
        return value if value and re.fullmatch(r"\d+", value) else "8"
    if isinstance(default, int) and 2 < default <= 16 and re.search(r"depth|layers|heads$", parameter.name):
        return constructor_value(parameter.name)
    return None


_LARGER: Final = {"16": "64", "4": "8"}


def _larger(name: str, value: str) -> str:
    if re.search(r"image|img|resolution|patch|height|width|input_size", name, re.IGNORECASE):
        return _LARGER.get(value, value)
    return value


def render(qualname: str, parameters: list[inspect.Parameter], values: dict[str, str]) -> str:
    parts = []
    skipped = False
    for parameter in parameters:
        if parameter.name not in values:
            skipped = True
            continue
        value = values[parameter.name]
        if parameter.kind is parameter.POSITIONAL_ONLY and not skipped:
            parts.append(value)
        else:
            parts.append(f"{parameter.name}={value}")
    return f"{qualname}({', '.join(parts)})"


def is_too_large(module: torch.nn.Module, limit: int = 4_000_000) -> bool:
    """Over 4 million parameters a single backward takes longer than all trials of a small one."""
    return sum(parameter.numel() for parameter in module.parameters()) > limit
