"""What forward leaves on the context as attributes, and whether backward reads more of it than its shape.

This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.autograd_functions import AutogradFunction
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.gradient_returns import own_nodes
from analyzer.syntax import dotted_name

_DESCRIBING = frozenset({"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "itemsize"})
_DESCRIBING_METHODS = frozenset(
    {"size", "dim", "numel", "stride", "type", "get_device", "element_size", "storage_offset"}
)


def assigned_attributes(statement: ast.Assign, context: str | None) -> Iterator[tuple[str, ast.expr]]:
    """(attribute, value) for each `ctx.attribute = value`, pairwise through tuples."""
    for target in statement.targets:
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=False))
        for place, value in pairs:
            if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == context:
                yield place.attr, value


def parts(value: ast.expr) -> list[ast.expr]:
    """What a tuple, list or dictionary that is written out holds; anything else is its only part."""
    match value:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items):
            return items
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return [keyword.value for keyword in keywords]
    return [value]


def values_are_read(function: AutogradFunction, attribute: str) -> bool:
    """Whether backward uses more of the kept tensor than its shape, type and place."""
    backward = function.backward
    if backward is None:
        return False
    context = function.context_name(backward)
    for node in own_nodes(backward):
        if not (isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)):
            continue
        if dotted_name(node.value) == context and not _is_description(function.file, node):
            return True
    return False


def _is_description(file: FileContext, node: ast.Attribute) -> bool:
    parent = file.parent(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _DESCRIBING | _DESCRIBING_METHODS or parent.attr.startswith("new_")
    if isinstance(parent, ast.Call) and node in parent.args:
        qualified = file.qualified_name(parent.func) or ""
        if qualified.endswith("_like") and operations().never_differentiable(qualified):
            return True
        return isinstance(parent.func, ast.Attribute) and parent.func.attr in {"view_as", "expand_as", "type_as"}
    return isinstance(parent, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
