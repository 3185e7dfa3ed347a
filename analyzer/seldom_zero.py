"""Divisors that are zero in theory only: what they are made of, or what the function is for, keeps them from it.

Each of these conditions was found on divisions of ten packages that were never zero. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from analyzer.context import FileContext
from analyzer.syntax import terminal_name

# Smoothing kernels and windows are made from settings, not from data.
_KERNELS = re.compile(r"(^|_)(kernels?|windows?|gaussian)([123]d)?(_|$)")
_PRODUCTS = frozenset({"matmul", "mm", "bmm"})
_LENGTHS = frozenset({"norm", "vector_norm", "matrix_norm"})
_LARGEST = frozenset({"argmax", "topk"})
_DEEPEST = 8
_SAME_VALUES = frozenset({"squeeze", "unsqueeze", "view", "reshape", "to", "float"})
_SAME_MASK = frozenset({"to", "float", "type", "bool", "clone", "type_as", "double", "cuda"})


def seldom_zero(file: FileContext, divisor: ast.expr, origin: ast.AST | None) -> bool:
    """Whether a divisor, which stems from the reduction `origin`, is hardly ever zero in practice."""
    function = file.enclosing_function(divisor)
    if function is not None and _KERNELS.search(function.name):
        return True
    reduced = squared_in(file, origin)
    if reduced is not None and (
        _is_unit(file, reduced) or _is_count(file, reduced) or _is_product_under_norm(file, origin, reduced)
    ):
        return True
    return _is_largest(file, divisor) or _has_its_zeros_replaced(file, divisor)


def squared_in(file: FileContext, origin: ast.AST | None) -> ast.expr | None:
    """`x` of `x.norm()`, `(x * x).sum()` and `x.pow(2).sum()`."""
    operation = file.values.operation(origin) if isinstance(origin, ast.Call) else None
    operand = operation.operand if operation is not None else None
    if isinstance(operand, ast.BinOp) and isinstance(operand.op, (ast.Mult, ast.Pow)):
        return operand.left
    return operand


def _definitions(file: FileContext, expression: ast.expr) -> Iterator[ast.expr]:
    """What a name stands for, and the name inside it where that only selects or turns the sign."""
    for _ in range(_DEEPEST):
        if isinstance(expression, ast.UnaryOp):
            expression = expression.operand
        elif isinstance(expression, ast.Subscript):
            expression = expression.value
        elif isinstance(expression, ast.Call) and terminal_name(expression.func) in _SAME_VALUES:
            if not isinstance(expression.func, ast.Attribute):
                return
            expression = expression.func.value
        else:
            yield expression
            found = file.values.single_definition(expression)
            if found is None:
                return
            expression = found


def _is_unit(file: FileContext, tensor: ast.expr) -> bool:
    """Whether a tensor was divided by a norm before: where that was zero, it is NaN by now, and not zero."""
    for definition in _definitions(file, tensor):
        if isinstance(definition, ast.BinOp) and isinstance(definition.op, ast.Div):
            by = definition.right
            name = terminal_name(by.func if isinstance(by, ast.Call) else by) or ""
            return name in _LENGTHS or name.endswith("_norm")
    return False


def _is_count(file: FileContext, tensor: ast.expr) -> bool:
    """Whether a tensor counts something: ones, scattered by index. It carries no gradient."""
    for definition in _definitions(file, tensor):
        if isinstance(definition, ast.Call) and "scatter" in (terminal_name(definition.func) or ""):
            return any(
                isinstance(given, ast.Call) and file.qualified_name(given.func) in ("torch.ones", "torch.ones_like")
                for given in definition.args
            )
    return False


def _is_product_under_norm(file: FileContext, origin: ast.AST | None, tensor: ast.expr) -> bool:
    """Whether the norm is that of a whole matrix product, which is zero only if every entry is."""
    if not isinstance(origin, ast.Call) or terminal_name(origin.func) not in _LENGTHS:
        return False
    over = next((keyword.value for keyword in origin.keywords if keyword.arg in ("dim", "axis")), None)
    if not isinstance(over, (ast.Tuple, ast.List)):
        return False
    return any(_is_product(definition) for definition in _definitions(file, tensor))


def _is_product(expression: ast.expr) -> bool:
    if isinstance(expression, ast.BinOp):
        return isinstance(expression.op, ast.MatMult)
    return isinstance(expression, ast.Call) and terminal_name(expression.func) in _PRODUCTS


def _is_largest(file: FileContext, divisor: ast.expr) -> bool:
    """Whether the divisor was picked as the largest of several."""
    for definition in _definitions(file, divisor):
        if not isinstance(definition, ast.Call) or terminal_name(definition.func) not in ("gather", "take_along_dim"):
            continue
        given = [*definition.args, *(keyword.value for keyword in definition.keywords)]
        return any(
            isinstance(source, ast.Call) and terminal_name(source.func) in _LARGEST
            for index in given
            for source in _definitions(file, index)
        )
    return False


def _has_its_zeros_replaced(file: FileContext, divisor: ast.expr) -> bool:
    """Whether a lambda divides by the length of its argument, and is mapped over tensors after `t[t == 0] = eps`."""
    function = file.enclosing_function(divisor)
    around = next((node for node in file.ancestors(divisor) if isinstance(node, ast.Lambda)), None)
    mapping = file.parent(around) if around is not None else None
    if function is None or not isinstance(mapping, ast.Call) or terminal_name(mapping.func) != "map":
        return False
    mapped = {
        element.id
        for given in mapping.args[1:]
        for element in (given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given])
        if isinstance(element, ast.Name)
    }
    return bool(mapped) and mapped <= set(_replaced(file, function, divisor))


def _replaced(file: FileContext, function: ast.FunctionDef | ast.AsyncFunctionDef, use: ast.expr) -> Iterator[str]:
    """The names of which `name[name == 0] = …` is done before a place."""
    for assignment in file.nodes_in(function, ast.Assign):
        target = assignment.targets[0]
        if assignment.lineno >= use.lineno or not isinstance(target, ast.Subscript):
            continue
        test, name = target.slice, target.value
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
            continue
        if isinstance(name, ast.Name) and terminal_name(test.left) == name.id:
            yield name.id


def sums_others(file: FileContext, origin: ast.AST | None) -> bool:
    """Whether exponentials of all pairs but those of an element with itself are added up: there is always another."""
    operation = file.values.operation(origin) if isinstance(origin, ast.Call) else None
    if operation is None or operation.name != "sum" or operation.operand is None:
        return False
    factors = file.values.single_definition(operation.operand) or operation.operand
    if not isinstance(factors, ast.BinOp) or not isinstance(factors.op, ast.Mult):
        return False
    sides = ((factors.left, factors.right), (factors.right, factors.left))
    return any(_is_off_diagonal(file, mask) and _is_exponential(file, other) for mask, other in sides)


def _is_exponential(file: FileContext, expression: ast.expr) -> bool:
    found = file.values.single_definition(expression) or expression
    return isinstance(found, ast.Call) and terminal_name(found.func) == "exp"


def _is_off_diagonal(file: FileContext, mask: ast.expr) -> bool:
    """`~torch.eye(n, dtype=torch.bool)`, `1 - torch.eye(n)`, and what is named after being made of it."""
    found = _mask(file, mask)
    if isinstance(found, ast.UnaryOp) and isinstance(found.op, ast.Invert):
        return _is_diagonal(file, found.operand)
    return isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub) and _is_diagonal(file, found.right)


def _is_diagonal(file: FileContext, mask: ast.expr) -> bool:
    found = _mask(file, mask)
    return isinstance(found, ast.Call) and file.qualified_name(found.func) == "torch.eye"


def _mask(file: FileContext, mask: ast.expr) -> ast.expr:
    """A mask behind its names, casts and copies."""
    for _ in range(_DEEPEST):
        inner: ast.expr | None = None
        if isinstance(mask, ast.Name):
            inner = file.values.single_definition(mask)
        elif isinstance(mask, ast.Call) and terminal_name(mask.func) in _SAME_MASK:
            operation = file.values.operation(mask)
            inner = operation.operand if operation is not None else None
        if inner is None:
            break
        mask = inner
    return mask
