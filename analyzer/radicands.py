"""Sums that are zero by the formula they follow, although nothing says that they are never negative.

This module must not know rules, nor decide whether a root of them is a fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from analyzer.formulas import core, is_cosine, is_number, one_minus, operation_behind, square_of
from analyzer.syntax import terminal_name

if TYPE_CHECKING:
    from analyzer.context import FileContext

_EQUAL_POINTS = "for two equal points, or below zero by rounding"
_COSINE = re.compile(r"^cos(_|ine|$)|(_|^)cosine|_cos$")


def vanishing_radicand(file: FileContext, expression: ast.expr) -> str | None:
    """When an expression of unknown sign is zero by its formula; None if it follows none of these.

    The sine of a cosine (`1 - c ** 2`), a distance as `|a|^2 + |b|^2 - 2 a b`, a haversine.
    """
    found = core(file, expression)
    inner = one_minus(file, found)
    squared = square_of(file, core(file, inner)) if inner is not None else None
    if squared is not None and (is_cosine(file, squared) or _is_named_cosine(file, squared)):
        return "where the cosine is one"
    operation = operation_behind(file, found, "addmm", "baddbmm")
    if operation is not None:
        return _EQUAL_POINTS if _has_factor_of_two(operation.call) else None
    summands = list(_summands(file, found))
    if len(summands) >= 3 and any(negative and _is_twice_product(file, part) for part, negative in summands):
        return _EQUAL_POINTS
    others = [part for part, _ in summands if not _is_squared_sine(file, part)]
    if 0 < len(others) < len(summands) and all(_is_product_with_squared_sine(file, part) for part in others):
        return "for two equal points"
    return None


def _summands(file: FileContext, expression: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """(a term, whether it is subtracted) of a sum."""
    pending: list[tuple[ast.expr, bool]] = [(expression, False)]
    while pending:
        current, negative = pending.pop()
        current = core(file, current)
        if isinstance(current, ast.BinOp) and isinstance(current.op, (ast.Add, ast.Sub)):
            pending.append((current.left, negative))
            pending.append((current.right, negative is not isinstance(current.op, ast.Sub)))
        else:
            yield current, negative


def _is_twice_product(file: FileContext, expression: ast.expr) -> bool:
    """`2 * a @ b.t()`, `2 * torch.mm(a, b)`: twice a product of matrices or a sum of products."""
    if not isinstance(expression, ast.BinOp):
        return False
    if isinstance(expression.op, ast.MatMult):
        return isinstance(expression.left, ast.BinOp) and any(
            is_number(file, side, 2.0) for side in (expression.left.left, expression.left.right)
        )
    if not isinstance(expression.op, ast.Mult):
        return False
    sides = (expression.left, expression.right)
    return any(is_number(file, side, 2.0) for side in sides) and any(_is_product(file, side) for side in sides)


def _is_product(file: FileContext, expression: ast.expr) -> bool:
    found = core(file, expression)
    if isinstance(found, ast.BinOp):
        return isinstance(found.op, ast.MatMult)
    return operation_behind(file, found, "matmul", "mm", "bmm", "einsum", "sum", "inner", "dot") is not None


def _has_factor_of_two(call: ast.Call) -> bool:
    """`dist.addmm_(1, -2, x, y.t())`, `addmm(x, y, alpha=-2)`."""
    numbers = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(
        isinstance(number, ast.UnaryOp)
        and isinstance(number.op, ast.USub)
        and isinstance(number.operand, ast.Constant)
        and number.operand.value == 2
        for number in numbers
    )


def _is_squared_sine(file: FileContext, expression: ast.expr) -> bool:
    squared = square_of(file, core(file, expression))
    return squared is not None and operation_behind(file, squared, "sin") is not None


def _is_product_with_squared_sine(file: FileContext, expression: ast.expr) -> bool:
    """`cos(a) * cos(b) * sin(d) ** 2`."""
    found = core(file, expression)
    return (
        isinstance(found, ast.BinOp)
        and isinstance(found.op, ast.Mult)
        and (_is_squared_sine(file, found.right) or _is_squared_sine(file, found.left))
    )


def _is_named_cosine(file: FileContext, expression: ast.expr) -> bool:
    return any(_COSINE.search((terminal_name(name) or "").lower()) for name in (expression, core(file, expression)))
