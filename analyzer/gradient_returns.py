"""Counts the gradients that the `return` statements of a backward give.

What can't be counted for certain is not counted. This module must not know rules, nor what forward takes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.syntax import FunctionNode

# Each of the values of a name is followed through the names in it, so the work is this to the power of the depth.
_MOST_VALUES = 8
_SAVED = frozenset({"saved_tensors", "saved_variables"})


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one `return` of backward gives: `items` when it is told item by item, `is_list` for a list literal."""

    statement: ast.AST
    count: int
    items: tuple[ast.expr | None, ...]
    is_list: bool = False


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions, lambdas and classes inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        stack.extend(ast.iter_child_nodes(node))


def is_none(expression: ast.expr | None) -> bool:
    """Whether an item of a `return` is the constant None."""
    return expression is None or (isinstance(expression, ast.Constant) and expression.value is None)


def end_is_reached(block: Sequence[ast.stmt]) -> bool:
    """Whether control can come to the end of a block; of `match` and `try` it is taken not to."""
    last = block[-1] if block else None
    reached = True
    match last:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break() | ast.Match() | ast.Try() | ast.Assert():
            reached = False
        case ast.If(body=body, orelse=other):
            reached = not other or end_is_reached(body) or end_is_reached(other)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            reached = end_is_reached(body)
        case ast.While(test=ast.Constant(value=True)):
            reached = False
    return reached


class Returns:
    """Counts what the `return` statements of one backward give, through local names that are assigned once."""

    def __init__(self, file: FileContext, function: FunctionNode) -> None:
        self._file = file
        self._function = function
        self._values: dict[str, list[ast.expr | None]] = {}
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            # A gradient that comes in is one tensor (or None): the name stands for itself.
            self._values[argument.arg] = []
        for several in (arguments.vararg, arguments.kwarg):
            if several is not None:
                self._values[several.arg] = [None]
        for node in own_nodes(function):
            self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._values.setdefault(target.id, []).append(node.value)
                else:
                    self._collect_parts(target, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._values.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(left=node.value, op=node.op, right=node.value)
            self._values.setdefault(node.target.id, []).append(value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._collect_unknown(node.target)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._collect_unknown(item.optional_vars)
        elif isinstance(node, ast.NamedExpr):
            self._values.setdefault(node.target.id, []).append(node.value)

    def _collect_parts(self, target: ast.expr, value: ast.expr) -> None:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        values: list[ast.expr | None] = [None] * len(parts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(parts):
            values = list(value.elts)
        from_saved = isinstance(value, ast.Attribute) and value.attr in _SAVED
        for part, item in zip(parts, values, strict=True):
            if isinstance(part, ast.Name):
                known = self._values.setdefault(part.id, [])
                if not from_saved:
                    known.append(item)
            else:
                self._collect_unknown(part)

    def _collect_unknown(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._values.setdefault(node.id, []).append(None)

    def gradients(self, statement: ast.Return) -> Gradients | None:
        """What one `return` gives; None when that can't be counted."""
        value = statement.value
        if value is None:
            return Gradients(statement, 1, (None,))
        if isinstance(value, ast.List) and not any(isinstance(item, ast.Starred) for item in value.elts):
            return Gradients(statement, 1, (value,), is_list=True)
        items = self._items(value, depth=0)
        if items is not None:
            return Gradients(statement, len(items), items)
        if self._is_one(value, depth=0):
            return Gradients(statement, 1, (value,))
        return None

    def _items(self, value: ast.expr, depth: int) -> tuple[ast.expr | None, ...] | None:
        """The items of an expression that is certainly a tuple; None when it is not, or can't be counted."""
        if depth > 4:
            return None
        if isinstance(value, ast.Tuple):
            found: list[ast.expr | None] = []
            for item in value.elts:
                if not isinstance(item, ast.Starred):
                    found.append(item)
                    continue
                inner = self._items(item.value, depth + 1)
                if inner is None:
                    return None
                found.extend(inner)
            return tuple(found)
        if isinstance(value, ast.BinOp):
            return self._combined(value, depth)
        if isinstance(value, ast.Name):
            values = self._values.get(value.id)
            if values is not None and len(values) == 1 and values[0] is not None:
                return self._items(values[0], depth + 1)
        return None

    def _combined(self, value: ast.BinOp, depth: int) -> tuple[ast.expr | None, ...] | None:
        if isinstance(value.op, ast.Add):
            left, right = self._items(value.left, depth + 1), self._items(value.right, depth + 1)
            return (*left, *right) if left is not None and right is not None else None
        if isinstance(value.op, ast.Mult):
            for repeated, times in ((value.left, value.right), (value.right, value.left)):
                items = self._items(repeated, depth + 1)
                if items is not None and isinstance(times, ast.Constant) and isinstance(times.value, int):
                    return items * times.value
        return None

    def _is_one(self, value: ast.expr | None, depth: int) -> bool:
        """Whether an expression is certainly one tensor or None, not a tuple of several."""
        if value is None or depth > 6:
            return False
        one = isinstance(value, (ast.Constant, ast.Compare))
        match value:
            case ast.BinOp(op=ast.Add() | ast.Mult()):
                # A tuple can be added to a tuple or multiplied by a number, never by or to a tensor.
                sides = (value.left, value.right)
                one = any(self._is_tensor(side, depth + 1) for side in sides)
            case ast.BinOp() | ast.UnaryOp(op=ast.USub()):
                one = True
            case ast.IfExp():
                one = self._is_one(value.body, depth + 1) and self._is_one(value.orelse, depth + 1)
            case ast.Subscript():
                one = self._is_one(value.value, depth + 1)
            case ast.Name():
                values = self._values_of(value.id)
                one = values is not None and all(self._is_one(item, depth + 1) for item in values)
            case ast.Call():
                one = self._call_gives_one(value, depth)
        return one

    def _is_tensor(self, value: ast.expr | None, depth: int) -> bool:
        """Whether an expression is certainly a tensor (or the None that stands for one), not a number or a tuple."""
        if value is None or depth > 6:
            return False
        match value:
            case ast.BinOp():
                return self._is_tensor(value.left, depth + 1) or self._is_tensor(value.right, depth + 1)
            case ast.UnaryOp():
                return self._is_tensor(value.operand, depth + 1)
            case ast.Subscript():
                return self._is_tensor(value.value, depth + 1)
            case ast.Name():
                values = self._values_of(value.id)
                return values is not None and all(self._is_tensor(item, depth + 1) for item in values)
        return isinstance(value, ast.Call) and self._call_gives_one(value, depth)

    def _values_of(self, name: str) -> list[ast.expr | None] | None:
        """What a name may be; nothing is known of one that is assigned so often that nobody could follow it."""
        values = self._values.get(name)
        return values if values is None or len(values) <= _MOST_VALUES else [None]

    def _call_gives_one(self, value: ast.Call, depth: int) -> bool:
        qualified = self._file.qualified_name(value.func)
        if qualified is not None:
            return operations().returns_one_tensor(qualified)
        if isinstance(value.func, ast.Attribute):
            return operations().returns_one_tensor(f"torch.Tensor.{value.func.attr}") and self._is_one(
                value.func.value, depth + 1
            )
        return False

    def is_certainly_none(self, value: ast.expr | None) -> bool:
        """Whether an expression is None, also through a name that is never anything else."""
        if isinstance(value, ast.Name):
            values = self._values.get(value.id, [])
            return bool(values) and all(item is not None and is_none(item) for item in values)
        return is_none(value)

    def is_certainly_not_none(self, value: ast.expr | None, depth: int = 0) -> bool:
        """Whether an expression is certainly a tensor."""
        if value is None or depth > 6 or is_none(value):
            return False
        if isinstance(value, ast.Name):
            values = self._values_of(value.id) or []
            return bool(values) and all(self.is_certainly_not_none(item, depth + 1) for item in values)
        if isinstance(value, ast.IfExp):
            return self.is_certainly_not_none(value.body, depth + 1) and self.is_certainly_not_none(
                value.orelse, depth + 1
            )
        return isinstance(value, (ast.BinOp, ast.UnaryOp)) or (
            isinstance(value, ast.Call) and self._call_gives_one(value, depth)
        )
