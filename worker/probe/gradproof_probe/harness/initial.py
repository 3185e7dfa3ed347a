"""The first arguments to try: kinds from names and annotations, shapes from layers, source, parameters and names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.harness import names
from gradproof_probe.harness.arguments import Argument, Arguments
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.shapes import (
    LayerHint,
    Shape,
    SourceHint,
    parameter_hints,
    random_shapes,
    saved_names,
    shapes_of_layer,
)
from gradproof_probe.importing import Resolved

# Where nothing says a shape: widths before images, so that the cheap ones come first.
GENERIC: Final[tuple[Shape, ...]] = (
    (3, 8),
    (2, 5, 8),
    (2, 3, 16, 16),
    (2, 2, 5, 4),
    (6,),
    (2, 3, 4, 16, 16),
    (2, 6, 5),
)


def starting_arguments(
    resolved: Resolved,
    function: Callable[..., Any],
    instance: torch.nn.Module | None,
    layers: list[LayerHint],
    source: dict[str, SourceHint],
) -> Iterator[tuple[Arguments, str]]:
    """(arguments, where the shape comes from), most likely first."""
    kind = resolved.target.kind
    parameters = given_parameters(function, kind)
    saved = saved_names(resolved.value) if kind == "autograd_function" else frozenset()
    arguments = [_argument(parameter, kind, saved) for parameter in parameters]
    seen: set[tuple[str, ...]] = set()
    by_layer = _by_layer(arguments, instance, source)
    if by_layer:
        for shaped in by_layer:
            seen.add(tuple(argument.render() for argument in shaped))
            yield shaped, "each argument by the layer that it goes into"
    for shape, high, why in _shapes(arguments, instance, layers, source):
        for shaped in _fill(arguments, shape, high, source, kind):
            key = tuple(argument.render() for argument in shaped)
            if key not in seen:
                seen.add(key)
                yield shaped, why


def given_parameters(function: Callable[..., Any], kind: str) -> list[inspect.Parameter]:
    """Those that have to be given: without default; optional tensors (masks) stay at their default."""
    try:
        every = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        every = []
    if kind == "module":
        every = parameters_of(function)
    elif kind == "autograd_function" and every and every[0].name in ("ctx", "context", "self", "cls", "_", "_ctx"):
        every = every[1:]
    given = [p for p in every if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if kind == "autograd_function":
        # apply() takes no keywords and forward's defaults do not reach it: every parameter is given.
        given = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not given and any(p.kind is p.VAR_POSITIONAL for p in every):
        given = [inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)]
    if not given and kind == "function":
        given = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)][:1]
    return given


def _argument(parameter: inspect.Parameter, kind: str, saved: frozenset[str] = frozenset()) -> Argument:
    name = parameter.name
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    annotation = _annotation(parameter)
    if kind == "autograd_function" and parameter.default is not parameter.empty and not _is_tensor(annotation):
        return Argument(name, "literal", text=repr(parameter.default))
    literal = _literal(name, annotation, kind)
    if literal is not None and not (name in saved and not annotation):
        return Argument(name, "literal", text=literal, keyword=keyword, guessed=not annotation)
    if re.search(r"LongTensor|IntTensor|Int\[|int64", annotation):
        return Argument(name, "int", keyword=keyword)
    if re.search(r"BoolTensor|Bool\[", annotation) or names.BOOLEAN_INPUT.search(name):
        return Argument(name, "bool", keyword=keyword)
    if names.INTEGER_INPUT.search(name) and not names.LOSS_TARGET.search(name):
        return Argument(name, "int", keyword=keyword)
    return Argument(name, "float", keyword=keyword, values="unit" if "prob" in name else "normal")


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _is_tensor(annotation: str) -> bool:
    return "Tensor" in annotation


def _literal(name: str, annotation: str, kind: str) -> str | None:
    if _is_tensor(annotation):
        if re.match(r"(typing\.)?(list|tuple|sequence|iterable)\b", annotation, re.IGNORECASE):
            return "[torch.randn(2, 5, 8), torch.randn(2, 5, 8)]"
        return None
    by_name = names.scalar_input(name)
    if re.fullmatch(r"int|typing\.Optional\[int\]|int \| None", annotation):
        return by_name if by_name and re.fullmatch(r"-?\d+", by_name) else "2"
    if annotation == "float":
        return by_name if by_name and re.fullmatch(r"-?[\d.e-]+", by_name) else "0.7"
    if annotation == "bool":
        return "False"
    if annotation == "str":
        return by_name if by_name and by_name.startswith("'") else "'mean'"
    if re.search(r"callable", annotation, re.IGNORECASE):
        return "torch.tanh"
    return by_name if kind != "module" and not annotation else None


def _shapes(
    arguments: list[Argument],
    instance: torch.nn.Module | None,
    layers: list[LayerHint],
    source: dict[str, SourceHint],
) -> Iterator[tuple[Shape, int | None, str]]:
    first = next((argument for argument in arguments if argument.is_tensor), None)
    if first is None:
        yield (), None, "no tensor arguments"
        return
    rank = source[first.name].rank if first.name in source else None
    hinted = [(shape, hint.high, f"shape from {hint.layer}") for hint in layers for shape in hint.shapes]
    if rank is not None:
        # The source's word about the rank goes before the layers' order.
        yield from (item for item in hinted if len(item[0]) == rank and item[1] is None)
        width = next((shape[-1] for shape, _, _ in hinted if shape), names.WIDTH)
        yield from ((shape, None, f"{rank} axes unpacked in the source") for shape in random_shapes(rank, width))
    if first.kind == "int" and layers:
        yield from (item for item in hinted if item[1] is not None)
    if names.IMAGE_INPUT.search(first.name):
        for side in (names.IMAGE, 64):
            yield (names.BATCH, names.CHANNELS, side, side), None, f"an image by its name {first.name}"
    if names.VIDEO_INPUT.search(first.name):
        yield (names.BATCH, names.CHANNELS, 4, names.IMAGE, names.IMAGE), None, f"a video by its name {first.name}"
    yield from hinted
    if instance is not None:
        yield from ((shape, None, "shape from the module's own parameters") for shape in parameter_hints(instance))
    if names.ATTENTION_INPUT.search(first.name):
        yield (2, 2, 5, 4), None, "attention heads by name"
        yield (2, 5, 8), None, "a sequence by name"
    yield from ((shape, None, "a usual shape") for shape in GENERIC)


def _by_layer(
    arguments: list[Argument], instance: torch.nn.Module | None, source: dict[str, SourceHint]
) -> list[Arguments]:
    """Arguments that the source hands to layers of their own, every one with that layer's shapes."""
    if instance is None:
        return []
    hints = {
        argument.name: hint
        for argument in arguments
        if argument.is_tensor
        and argument.name in source
        and (layer := source[argument.name].layer) is not None
        and (hint := shapes_of_layer(instance, layer)) is not None
    }
    if not hints:
        return []
    found: list[Arguments] = []
    ranks = {len(shape) for hint in hints.values() for shape in hint.shapes}
    for preferred in (0, *sorted(ranks)):
        shaped = []
        for argument in arguments:
            hint = hints.get(argument.name)
            if hint is None:
                shaped.append(
                    argument.with_shape(next(iter(hints.values())).shapes[0]) if argument.is_tensor else argument
                )
                continue
            shape = next((item for item in hint.shapes if len(item) == preferred), hint.shapes[0])
            kind = "int" if hint.high is not None else argument.kind
            shaped.append(replace(argument, kind=kind, shape=shape, high=hint.high or argument.high))
        found.append(tuple(shaped))
    return list(dict.fromkeys(found))


def _fill(
    arguments: list[Argument], shape: Shape, high: int | None, source: dict[str, SourceHint], kind: str
) -> Iterator[Arguments]:
    """All tensors with `shape`, adapted to each one's kind and rank; for losses also integer targets."""
    position = next((i for i, argument in enumerate(arguments) if argument.is_tensor), None)
    shaped: list[Argument] = []
    for index, argument in enumerate(arguments):
        own = source[argument.name].rank if argument.name in source else None
        if not argument.is_tensor:
            shaped.append(argument)
        elif index == position and high is not None:
            shaped.append(replace(argument, kind="int", shape=shape, high=high))
        elif argument.kind == "int":
            shaped.append(
                replace(argument, shape=shape[:own] if own is not None else shape[:1] if len(shape) < 3 else shape[:2])
            )
        elif argument.kind == "bool":
            shaped.append(argument.with_shape(shape[:own] if own is not None else shape[:2]))
        elif own is not None and own != len(shape) and index != position:
            shaped.append(argument.with_shape(random_shapes(own, shape[-1] if shape else names.WIDTH)[0]))
        else:
            shaped.append(argument.with_shape(shape))
    targets = [
        i for i, a in enumerate(shaped) if i != position and a.kind == "float" and names.LOSS_TARGET.search(a.name)
    ]
    yield tuple(shaped)
    others = [i for i, a in enumerate(shaped) if i != position and a.kind == "float"]
    if others and kind == "autograd_function" and len(shape) >= 2:
        # A vector or a scalar beside the first tensor: weights, slopes, coefficients.
        for smaller in ((), shape[-1:], shape[1:2]):
            yield tuple(a.with_shape(smaller) if i in others else a for i, a in enumerate(shaped))
    if targets and len(shape) >= 2:
        reduced = (shape[0], *shape[2:])
        yield tuple(replace(a, kind="int", shape=reduced, high=2) if i in targets else a for i, a in enumerate(shaped))
