"""Whether code shows that it expects to run in a 16-bit type, though no tensor's type is told.

Whoever casts a result back with `.to(x.dtype)`, upcasts in front of a softmax or names float16 knows that the module is
run in half precision. Nothing else tells: any module can be. This module must not know rules.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, terminal_name

_NAMES = frozenset({"float16", "half", "bfloat16", "autocast", "GradScaler", "custom_fwd"})
_CASTS = frozenset({"to", "type"})


def expects_low_precision(file: FileContext, node: ast.AST) -> ast.AST | None:
    """The place, in the class or function around a node, that shows an eye for low precision; None without one."""
    scope = _scope(file, node)
    if scope is None:
        return None
    for attribute in file.nodes_in(scope, ast.Attribute):
        if attribute.attr in _NAMES:
            return attribute
    for call in file.nodes_in(scope, ast.Call):
        if _is_cast_back(call) or _is_upcast(call):
            return call
    return None


def _scope(file: FileContext, node: ast.AST) -> ast.ClassDef | FunctionNode | None:
    owner = file.enclosing_class(node)
    return owner if owner is not None else file.enclosing_function(node)


def _is_cast_back(call: ast.Call) -> bool:
    """`.to(x.dtype)`, `.type_as(x)`."""
    name = terminal_name(call.func)
    if name == "type_as":
        return isinstance(call.func, ast.Attribute)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "dtype")]
    return name in _CASTS and any(isinstance(item, ast.Attribute) and item.attr == "dtype" for item in arguments)


def _is_upcast(call: ast.Call) -> bool:
    """`x.float()`, `softmax(x, dtype=torch.float32)`."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "float" and not call.args:
        return not _is_condition(call.func.value)
    wanted = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"]
    return terminal_name(call.func) in ("softmax", "log_softmax") and any(
        terminal_name(item) == "float32" for item in wanted
    )


def _is_condition(expression: ast.expr) -> bool:
    """`(x > 0).float()` and `mask.float()` make numbers of a mask."""
    name = terminal_name(expression) or ""
    return isinstance(expression, (ast.Compare, ast.UnaryOp, ast.BoolOp)) or "mask" in name
