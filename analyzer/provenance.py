"""Whether a tensor comes out of a network: its elements are never all zero there, unless by accident.

The output of a layer with a bias, or of a whole submodel, is not a row of zeros; the argument of a function, an
embedding of padding or what a ReLU left can be one. This module must not know rules.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from analyzer.formulas import core
from analyzer.syntax import terminal_name

if TYPE_CHECKING:
    from analyzer.context import FileContext

_LARGEST_DEPTH = 8
# Layers whose output is zero where their input is, or for padding.
_KEEP_ZERO = frozenset(
    {
        *("ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Tanh", "ELU", "Dropout", "Dropout1d", "Dropout2d", "Identity"),
        *("Flatten", "Unflatten", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "PReLU"),
        *("AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Hardtanh", "Softshrink", "Hardshrink", "Threshold", "Softmax"),
        *("EmbeddingBag", "Embedding", "ModuleList", "ModuleDict", "Upsample", "Fold", "Unfold", "PixelShuffle"),
    }
)
# Results that stay a row of zeros only if all of what they are made of is.
_REDUCING = frozenset({"mean", "matmul", "mm", "bmm", "dropout"})


def out_of_network(file: FileContext, expression: ast.expr) -> bool:
    """Whether all that an expression may be comes out of a layer with a bias or of a submodel."""
    pending: list[tuple[ast.expr, int]] = [(expression, 0)]
    while pending:
        current, depth = pending.pop()
        if depth > _LARGEST_DEPTH:
            return False
        sources = _sources(file, current)
        if sources is None:
            return False
        pending.extend((source, depth + 1) for source in sources)
    return True


def _sources(file: FileContext, expression: ast.expr) -> list[ast.expr] | None:
    """What still has to come out of a network for the expression to; empty: it does; None: it does not."""
    found = core(file, expression)
    if isinstance(found, ast.Call):
        return _sources_of_call(file, found)
    if isinstance(found, ast.Name):
        bindings = file.values.definitions(found)
        values = [binding.value for binding in bindings if binding.value is not None]
        return values if values and len(values) == len(bindings) else None
    if isinstance(found, ast.Attribute):
        # `outputs.pooler_output` of what a submodel returned
        is_part = not (isinstance(found.value, ast.Name) and found.value.id == "self")
        return [found.value] if is_part else None
    if isinstance(found, ast.BinOp) and isinstance(found.op, (ast.MatMult, ast.Add)):
        return [found.left]
    return None


def _sources_of_call(file: FileContext, call: ast.Call) -> list[ast.expr] | None:
    function = call.func
    operation = file.values.operation(call)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
        layer = (file.values.layer(call) or "").rpartition(".")[2]
        if layer in _KEEP_ZERO or _ends_in_activation(file, call):
            return None
        without_bias = layer in ("Linear", "Conv1d", "Conv2d", "Conv3d") and not file.values.has_bias(call)
        if not without_bias:
            return []
        return call.args[:1] or None
    if operation is not None and operation.name in _REDUCING and operation.operand is not None:
        return [operation.operand]
    # A helper that is called a reshaping moves what it is given.
    return call.args[:1] or None if (terminal_name(function) or "").startswith(("reshape_", "rearrange")) else None


def _ends_in_activation(file: FileContext, call: ast.Call) -> bool:
    """Whether the layer is an `nn.Sequential(..., nn.ReLU())`."""
    made = file.values.construction(call)
    last = made.args[-1] if made is not None and made.args else None
    if not isinstance(last, ast.Call) or (file.values.layer(call) or "").rpartition(".")[2] != "Sequential":
        return False
    return (terminal_name(last.func) or "") in _KEEP_ZERO
