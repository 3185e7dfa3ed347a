"""Which custom autograd Functions of a file give back a view, or their input as it is.

Torch refuses in-place writes to what they return. This module must not know runs or rules.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, parameters

# `reshape` and `flatten` are views of what is laid out in order.
_VIEWS = frozenset(
    {
        *("view", "view_as", "reshape", "reshape_as", "t", "transpose", "permute", "squeeze", "unsqueeze", "flatten"),
        *("expand", "expand_as", "select", "narrow", "movedim", "swapaxes", "unflatten", "diagonal"),
    }
)


def view_functions(file: FileContext) -> frozenset[str]:
    """The names of those Functions whose forward always returns a view or one of its arguments."""
    return file.once(_view_functions)


def _view_functions(file: FileContext) -> frozenset[str]:
    return frozenset(function.name for function in file.autograd_functions if _returns_a_view(file, function))


def _returns_a_view(file: FileContext, function: ast.ClassDef) -> bool:
    for statement in function.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
            returned = [item.value for item in file.returns_of(statement)]
            return bool(returned) and all(_is_view(file, statement, value) for value in returned)
    return False


def _is_view(file: FileContext, forward: FunctionNode, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Name):
        assigned = file.values.bindings(forward).all(value.id)
        if not assigned:
            return value.id in {argument.arg for argument in parameters(forward)}
        return len(assigned) == 1 and isinstance(assigned[0].value, ast.Call) and _is_view_call(assigned[0].value)
    return isinstance(value, ast.Call) and _is_view_call(value)


def _is_view_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _VIEWS
