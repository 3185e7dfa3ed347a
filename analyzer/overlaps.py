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
    own = {ast.dump(core(file, numerator)), ast.dump(core(file, _without_two(file, numerator)))}
    found: set[str] = set()
    for summand in _summands(file, divisor):
        if file.values.value(summand).kind is Kind.NUMBER:
            return False  # smoothed
        if ast.dump(summand) in own:
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


def _without_two(file: FileContext, numerator: ast.expr) -> ast.expr:
    """`x` of `2 * x`; anything else as it is."""
    found = core(file, numerator)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Mult):
        scaled = [side for side in (found.left, found.right) if not is_number(file, side, 2.0)]
        found = core(file, scaled[0]) if len(scaled) == 1 else found
    return found


def is_union_of_boxes(file: FileContext, numerator: ast.expr, divisor: ast.expr) -> bool:
    """Whether a value is divided by the sum of two areas less itself: `inter / (area_a + area_b - inter)`."""
    own = ast.dump(core(file, numerator))
    others: list[bool] = []
    subtracted = False
    pending: list[tuple[ast.expr, bool]] = [(divisor, False)]
    while pending and len(others) < 3:
        current, negative = pending.pop()
        current = core(file, current)
        if isinstance(current, ast.BinOp) and isinstance(current.op, (ast.Add, ast.Sub)):
            pending.append((current.left, negative))
            pending.append((current.right, negative is not isinstance(current.op, ast.Sub)))
        elif negative and ast.dump(current) == own:
            subtracted = True
        else:
            value = file.values.value(current)
            others.append(not negative and value.kind is not Kind.NUMBER and not value.positive)
    return subtracted and others == [True, True]


def _overlap(file: FileContext, numerator: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """`a` and `b` of `2 * (a * b).sum()`."""
    found = _without_two(file, numerator)
    total = operation_behind(file, found, "sum")
    product = core(file, total.operand) if total is not None and total.operand is not None else None
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    return product.left, product.right
