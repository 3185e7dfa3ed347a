"""Whether a tensor is computed from the data a model was given and from nothing else.

Data have no gradient, so a slope that is infinite there hurts nobody: spectrograms, pixels, observed series, cameras.
What they are is told from their names alone. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from analyzer.handed_over import all_given
from analyzer.syntax import parameters
from analyzer.values.guards import value_names

if TYPE_CHECKING:
    from analyzer.context import FileContext

_RAW = re.compile(
    r"(^|_)(past_(values|target)|input_(features|values)|pixel_values|cameras?|extrinsics?|intrinsics?)(_|$)"
    r"|(^|_)(prompt|sensor)_depths?(_|$)|(?<!grad)_cam$|(^|_)rays?(_|$)|(^|_)(c2w|w2c)(_|$)"
    r"|(^|_)raw_(inputs?|images?|data|series|audio|speech|signals?|waveforms?|values|points|pixels)(_|$)"
)
# What a model learns or computes may bear the name of the data it was made from.
_COMPUTED = re.compile(r"embed|hidden|feature_map|pred|logits|delta|learned|latent")
# What selects or counts carries no gradient either.
_SELECTS = re.compile(r"mask|(^|_)(pad|padding|lengths?|eps|device|dtype|num|dim|height|width|idx|indices)(_|$)")
# The rotation, the shift and the matrix of a camera, next to what is called one.
_OF_CAMERA = frozenset({"R", "T", "K"})
_RAYS = re.compile(r"unproject|grid|rays|camera")
_MOST_NAMES = 24


def made_of_raw_inputs(file: FileContext, expression: ast.expr) -> bool:
    """Whether all tensors that an expression goes back to are data by name, with no layer on the way."""
    pending, seen, found = [expression], set[ast.AST](), False
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        indices = _indices(current)
        if len(seen) > _MOST_NAMES or _has_layer(file, current, indices):
            return False
        for key, node in value_names(current):
            if node in indices or _has_no_gradient(file, key, node):
                continue
            sources = _sources(file, key, node)
            if not sources and not _is_raw(key) and key not in _OF_CAMERA:
                return False
            found = found or _is_raw(key)
            pending.extend(sources)
    return found


def _has_no_gradient(file: FileContext, key: str, node: ast.expr) -> bool:
    """Whether a name is a number, a count, a mask or a setting, whatever it is made of."""
    value = file.values.value(node)
    if value.is_number or value.is_discrete or key == "self.config":
        return True
    low = key.lower()
    is_selection = _SELECTS.search(low) is not None and _COMPUTED.search(low) is None
    return is_selection and not _is_raw(key) and not file.values.definitions(node)


def _sources(file: FileContext, key: str, node: ast.expr) -> list[ast.expr]:
    """What a name was assigned, or what the calls of the helper around it give for it; empty: the name must tell."""
    values = [binding.value for binding in file.values.definitions(node)]
    known = [value for value in values if value is not None]
    function = file.enclosing_function(node)
    if function is None or (_is_raw(key) and known and all(_makes_rays(value) for value in known)):
        return []
    if not values:
        return all_given(file, function, key)
    # Of several assignments none may have happened: then it is still the argument of that name.
    is_argument = any(argument.arg == key for argument in parameters(function))
    may_be_argument = is_argument and file.values.single_definition(node) is None
    return known if len(known) == len(values) and (_is_raw(key) or not may_be_argument) else []


def _is_raw(name: str) -> bool:
    low = name.lower()
    return not low.startswith("self.") and _RAW.search(low) is not None and _COMPUTED.search(low) is None


def _makes_rays(value: ast.expr) -> bool:
    """Whether a plain function lays out the rays of a camera, which it does from settings."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and _RAYS.search(value.func.id) is not None


def _indices(expression: ast.expr) -> set[ast.AST]:
    """All that only says which elements are meant."""
    selections = [node.slice for node in ast.walk(expression) if isinstance(node, ast.Subscript)]
    return {node for selection in selections for node in ast.walk(selection)}


def _has_layer(file: FileContext, expression: ast.expr, indices: set[ast.AST]) -> bool:
    """Whether anything but an operation on tensors is called: a layer, a model or a function nobody knows."""
    return any(
        isinstance(node, ast.Call) and (file.values.operation(node) is None or _is_own(node.func))
        for node in ast.walk(expression)
        if node not in indices
    )


def _is_own(function: ast.expr) -> bool:
    """`self.layer`, which might be taken for a method of a tensor."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "self"
