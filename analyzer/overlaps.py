"""Recognises overlap scores (Dice, intersection over union), which are 0 / 0 for two empty masks.

This module must not know rules, nor decide whether a score is a fault.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from analyzer.formulas import core, is_number, operation_behind, square_of
from analyzer.values.domain import Kind

if TYPE_CHECKING:
    from analyzer.context import FileContext

_LARGEST_DEPTH = 12


def is_overlap(file: FileContext, numerator: ast.expr, divisor: ast.expr) -> bool:
    """Whether `2 * (a * b).sum()` is divided by `a.sum() + b.sum()`, or an intersection by a union.

    Not with a number in the divisor: that smooths the score.
    """
    product = _overlap(file, numerator)
    if product is None:
        return False
    wanted = {ast.dump(core(file, side)) for side in product}
    own = ast.dump(core(file, numerator))
    found: set[str] = set()
    for summand in _summands(file, divisor):
        if file.values.value(summand).kind is Kind.NUMBER:
            return False  # smoothed
        if ast.dump(summand) == own:
            # true positives over themselves and what was missed: Tversky, precision, recall
            found |= wanted
            continue
        total = operation_behind(file, _unscaled(file, summand), "sum")
        if total is None or total.operand is None:
            return False
        for part in _summands(file, total.operand):
            squared = square_of(file, part)
            found.add(ast.dump(core(file, squared if squared is not None else part)))
    return len(wanted) == 2 and wanted <= found


def _summands(file: FileContext, expression: ast.expr) -> list[ast.expr]:
    """The terms of a sum or difference; an expression that is none is the only one."""
    found: list[ast.expr] = []
    pending = [expression]
    while pending and len(found) < _LARGEST_DEPTH:
        current = core(file, pending.pop())
        if isinstance(current, ast.BinOp) and isinstance(current.op, (ast.Add, ast.Sub)):
            pending.extend((current.left, current.right))
        else:
            found.append(current)
    return found


def _unscaled(file: FileContext, expression: ast.expr) -> ast.expr:
    """`x` of `0.5 * x` and `alpha * x`."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
        for scale, scaled in ((expression.left, expression.right), (expression.right, expression.left)):
            if file.values.value(scale).kind is Kind.NUMBER:
                return scaled
    return expression


def _overlap(file: FileContext, numerator: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """`a` and `b` of `2 * (a * b).sum()`."""
    found = core(file, numerator)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Mult):
        scaled = [side for side in (found.left, found.right) if not is_number(file, side, 2.0)]
        found = core(file, scaled[0]) if len(scaled) == 1 else found
    total = operation_behind(file, found, "sum")
    product = core(file, total.operand) if total is not None and total.operand is not None else None
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    return product.left, product.right
