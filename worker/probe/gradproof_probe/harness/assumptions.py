"""Conditions of the source that have to hold, asserts and guards that raise, noted as demands about shapes."""

from __future__ import annotations

import ast
from typing import Any, Protocol

from gradproof_probe.harness.values import (
    Bound,
    Constant,
    Items,
    Parameter,
    RankOf,
    ShapeOf,
    Size,
    Unknown,
    number_of,
)


class Reads(Protocol):
    def value(self, node: ast.expr | None, env: dict[str, Any]) -> Any: ...


def truth(value: Any) -> bool | None:
    """Whether a condition holds, as far as that is known."""
    if isinstance(value, Constant):
        try:
            return bool(value.value)
        except Exception:
            return None
    if isinstance(value, Items):
        return bool(value.values)
    if isinstance(value, Parameter):
        value.boolean += 1
    return None


def assume(reader: Reads, test: ast.expr, env: dict[str, Any], *, wanted: bool = True) -> None:
    """Note what must be so for `test` to be `wanted`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        assume(reader, test.operand, env, wanted=not wanted)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == wanted:
            for part in test.values:
                assume(reader, part, env, wanted=wanted)
        else:
            assume(reader, test.values[0], env, wanted=wanted)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        _compare(test, reader, env, wanted=wanted)
    else:
        reader.value(test, env)


def _compare(test: ast.Compare, reader: Reads, env: dict[str, Any], *, wanted: bool) -> None:
    left, operator, right = reader.value(test.left, env), test.ops[0], reader.value(test.comparators[0], env)
    equal = isinstance(operator, ast.Eq if wanted else ast.NotEq)
    if isinstance(test.left, ast.BinOp) and isinstance(test.left.op, ast.Mod) and equal and number_of(right) == 0:
        _divisible(reader.value(test.left.left, env), number_of(reader.value(test.left.right, env)))
    elif isinstance(operator, ast.In if wanted else ast.NotIn):
        _member(left, right)
    elif equal:
        _equal(left, right)
        _equal(right, left)
    else:
        _bounded(left, operator, right, wanted=wanted)


def _divisible(value: Any, divisor: int | None) -> None:
    if isinstance(value, Size) and divisor is not None and 0 < divisor <= 64:
        value.axis.root().divisors.add(divisor)


def _member(left: Any, right: Any) -> None:
    options = right.values if isinstance(right, Items) else []
    if isinstance(right, Constant) and isinstance(right.value, list | tuple | set | frozenset | dict | range):
        options = [Constant(item) for item in right.value]
    if isinstance(left, RankOf | Size) and options:
        _equal(left, options[-1] if isinstance(left, RankOf) and left.form.rank is None else options[0])
    if isinstance(left, Parameter):
        left.texts += [o.value for o in options if isinstance(o, Constant) and isinstance(o.value, str)]


def _equal(left: Any, right: Any) -> None:
    number = number_of(right)
    if isinstance(left, RankOf) and number is not None:
        left.form.set_rank(number)
    elif isinstance(left, RankOf) and isinstance(right, RankOf) and right.form.rank is not None:
        left.form.set_rank(right.form.rank)
    elif isinstance(left, Size):
        if isinstance(right, Size):
            left.axis.join(right.axis)
        elif number is not None:
            left.axis.fix(number)
    elif isinstance(left, ShapeOf):
        _equal_shapes(left, right)
    elif isinstance(left, Items) and isinstance(right, Items):
        for mine, theirs in zip(left.values, right.values, strict=False):
            _equal(mine, theirs)


def _equal_shapes(left: ShapeOf, right: Any) -> None:
    if isinstance(right, ShapeOf):
        if left.start == right.start == 0:
            left.form.same(right.form)
        elif left.start == right.start < 0:
            for index in range(left.start, 0):
                left.form.axis(index).join(right.form.axis(index))
        return
    sizes: list[Any] = right.values if isinstance(right, Items) else []
    if isinstance(right, Constant) and isinstance(right.value, tuple | list):
        sizes = [Constant(item) for item in right.value]
    if not sizes or any(isinstance(item, Unknown | ShapeOf | Bound) for item in sizes):
        return
    if left.start >= 0:
        left.form.set_rank(len(sizes) + left.start)
    for index, size in enumerate(sizes):
        place = index - len(sizes) if left.start < 0 else index + left.start
        _equal(Size(left.form.axis(place)), size)


def _bounded(left: Any, operator: ast.cmpop, right: Any, *, wanted: bool) -> None:
    number = number_of(right)
    if number is None:
        return
    least = None
    if isinstance(operator, ast.GtE if wanted else ast.Lt):
        least = number
    elif isinstance(operator, ast.Gt if wanted else ast.LtE):
        least = number + 1
    if least is None:
        return
    if isinstance(left, RankOf):
        left.form.least_rank = max(left.form.least_rank, least)
    elif isinstance(left, Size):
        left.axis.root().least = max(left.axis.root().least, min(least, 256))
