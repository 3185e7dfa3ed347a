"""Whether a tensor is computed from the data a model was given and from nothing else.

Data have no gradient, so a slope that is infinite there hurts nobody: spectrograms, pixels, observed series, cameras.
What they are is told from their names alone. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from analyzer.values.guards import value_names

if TYPE_CHECKING:
    from analyzer.context import FileContext

_RAW = re.compile(
    r"(^|_)(past_(values|target)|input_(features|values)|pixel_values|cameras?|extrinsics?|intrinsics?)(_|$)"
    r"|(?<!grad)_cam$|(^|_)rays?(_|$)|(^|_)(c2w|w2c)(_|$)"
    r"|(^|_)raw_(inputs?|images?|data|series|audio|speech|signals?|waveforms?|values|points|pixels)(_|$)"
)
# What a model learns or computes may bear the name of the data it was made from.
_COMPUTED = re.compile(r"embed|hidden|feature_map|pred|logits|delta|learned|latent")
# What selects or counts carries no gradient either.
_SELECTS = re.compile(r"mask|(^|_)(pad|padding|lengths?|eps|device|dtype|num|dim|height|width|[bthw]|idx|indices)(_|$)")
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
        if len(seen) > _MOST_NAMES or _has_layer(file, current):
            return False
        for key, node in value_names(current):
            if file.values.value(node).is_number or file.values.value(node).is_discrete:
                continue
            bindings = file.values.definitions(node)
            values = [binding.value for binding in bindings if binding.value is not None]
            if _is_raw(key) and values and all(_makes_rays(value) for value in values):
                found = True
                continue
            pending.extend(values)
            if values and len(values) == len(bindings):
                continue
            if _is_raw(key):
                found = True
            elif key not in _OF_CAMERA and _SELECTS.search(key.lower()) is None:
                return False
    return found


def _is_raw(name: str) -> bool:
    low = name.lower()
    return not low.startswith("self.") and _RAW.search(low) is not None and _COMPUTED.search(low) is None


def _makes_rays(value: ast.expr) -> bool:
    """Whether a plain function lays out the rays of a camera, which it does from settings."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and _RAYS.search(value.func.id) is not None


def _has_layer(file: FileContext, expression: ast.expr) -> bool:
    """Whether anything but an operation on tensors is called: a layer, a model or a function nobody knows."""
    return any(
        isinstance(node, ast.Call) and (file.values.operation(node) is None or _is_own(node.func))
        for node in ast.walk(expression)
    )


def _is_own(function: ast.expr) -> bool:
    """`self.layer`, which might be taken for a method of a tensor."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "self"
