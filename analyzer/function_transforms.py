"""Which functions of a file are handed to the transforms of `torch.func`, and what they call.

This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, terminal_name

DIFFERENTIATING = ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "linearize")
_TRANSFORMS = (*DIFFERENTIATING, "vmap")
_HOMES = ("torch.func.", "functorch.", "torch._functorch.")


def transforms(file: FileContext) -> Iterator[tuple[ast.Call, str, FunctionNode | ast.Lambda]]:
    """(the call, the transform's name, the function that it is given) for functions defined in this file."""
    for call in file.calls(*_TRANSFORMS):
        qualified = file.qualified_name(call.func) or ""
        if not (qualified.startswith(_HOMES) or qualified == "torch.vmap") or not call.args:
            continue
        for function in _functions(file, call.args[0]):
            yield call, qualified.rpartition(".")[2], function


def reached(file: FileContext, function: FunctionNode | ast.Lambda) -> list[FunctionNode | ast.Lambda]:
    """A function and those of the same file that it calls, two levels deep."""
    found: list[FunctionNode | ast.Lambda] = [function]
    level: list[FunctionNode | ast.Lambda] = [function]
    for _ in range(2):
        following: list[FunctionNode | ast.Lambda] = []
        for outer in level:
            for call in (node for node in ast.walk(outer) if isinstance(node, ast.Call)):
                following.extend(inner for inner in _functions(file, call.func) if inner not in found)
        found.extend(following)
        level = following
    return found


def _functions(file: FileContext, expression: ast.expr) -> list[FunctionNode | ast.Lambda]:
    """The functions of this file that a name, a method of `self` or a lambda stands for; another transform is "
    "opened."""
    if isinstance(expression, ast.Lambda):
        return [expression]
    if (
        isinstance(expression, ast.Call)
        and terminal_name(expression.func) in (*_TRANSFORMS, "partial")
        and expression.args
    ):
        return _functions(file, expression.args[0])
    is_method = isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name)
    if isinstance(expression, ast.Name) or (is_method and expression.value.id in {"self", "cls"}):  # type: ignore[attr-defined]
        named = file.functions_by_name.get(terminal_name(expression) or "", [])
        owner = file.enclosing_class(expression)
        if is_method:
            return [function for function in named if file.parent(function) is owner]
        return [function for function in named if not isinstance(file.parent(function), ast.ClassDef)]
    return []
