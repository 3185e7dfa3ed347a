"""Whether something that always happens before a place keeps a value away from its singular point.

A condition, an assertion or an early return counts when it tests the value, or what the value was made of. What is
done to a result afterwards (`where`, `nan_to_num`, `masked_fill`, `clamp`, a product with a mask) never counts: the
gradient is NaN by then (measured, traps T22 to T23e). This module must not know rules.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from analyzer.syntax import dotted_name, leaves, terminal_name
from analyzer.values.domain import Kind

if TYPE_CHECKING:
    from analyzer.context import FileContext

# What the value was made of is followed this many assignments back.
_DEFINITION_DEPTH = 3
# Tests in one block before a place: no function of ten packages has a fifth of them.
_MOST_TESTS = 200
_NOT_ABOUT_VALUES = frozenset({"isinstance", "hasattr", "callable", "getattr", "is_tensor", "issubclass", "type"})
_SHAPE_ATTRIBUTES = frozenset({"ndim", "dim", "dtype", "device", "is_cuda", "requires_grad", "training", "is_sparse"})
_SIZE_ATTRIBUTES = frozenset({"shape", "size", "numel"})
_CHECKING_CALLS = ("check", "assert")


def guarded(file: FileContext, node: ast.AST, operand: ast.expr) -> bool:
    """Whether a test of `operand`, or of what it was made of, dominates `node`."""
    names = made_of(file, operand)
    if not names:
        return False
    child: ast.AST = node
    for outer in file.ancestors(node):
        if _branches_on(outer, child, names, file):
            return True
        for before in _tests_before(file, outer, child):
            if any(_excludes(statement, names, file) for statement in before):
                return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False
        child = outer
    return False


def made_of(file: FileContext, operand: ast.expr) -> frozenset[str]:
    """The names an operand is made of, followed back through the assignments of its function."""
    names: set[str] = set()
    pending: list[tuple[ast.expr, int]] = [(operand, 0)]
    while pending:
        expression, depth = pending.pop()
        for key, node in value_names(expression):
            if key in names:
                continue
            names.add(key)
            if depth < _DEFINITION_DEPTH:
                values = (binding.value for binding in file.values.definitions(node))
                pending.extend((value, depth + 1) for value in values if value is not None)
    return frozenset(names)


def value_names(expression: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and attributes of `self` in an expression; functions that are called are no values."""
    pending: list[ast.AST] = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            if node.id not in ("self", "torch", "F", "math", "np", "nn"):
                yield node.id, node
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield f"self.{node.attr}", node
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                pending.append(node.func.value)
            pending.extend(node.args)
            pending.extend(keyword.value for keyword in node.keywords if keyword.arg not in ("dim", "axis", "keepdim"))
        else:
            pending.extend(ast.iter_child_nodes(node))


def _branches_on(outer: ast.AST, child: ast.AST, names: frozenset[str], file: FileContext) -> bool:
    """Whether `child` only runs under a condition of `outer` that tests one of the names."""
    if isinstance(outer, (ast.If, ast.While)):
        return child is not outer.test and tests_value(outer.test, names, file)
    if isinstance(outer, ast.IfExp):
        return child is not outer.test and tests_value(outer.test, names, file)
    if isinstance(outer, ast.BoolOp):
        before = outer.values[: outer.values.index(child)] if child in outer.values else []
        return any(tests_value(value, names, file) for value in before)
    if isinstance(outer, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        return any(tests_value(test, names, file) for part in outer.generators for test in part.ifs)
    return False


def _tests_before(file: FileContext, outer: ast.AST, child: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    """What tests something before `child` in the block of `outer` that holds it; of very many the last."""
    if not isinstance(child, ast.stmt):
        return
    known = file.once(_tests_by_block)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(outer, field, None)
        if isinstance(block, list) and child in block:
            if (outer, field) not in known:
                known[outer, field] = [
                    (position, statement)
                    for position, statement in enumerate(block)
                    if isinstance(statement, (ast.Assert, ast.If, ast.Expr))
                ]
            tests = known[outer, field]
            end = bisect_left(tests, block.index(child), key=lambda test: test[0])
            yield [statement for _, statement in tests[max(end - _MOST_TESTS, 0) : end]]


def _tests_by_block(file: FileContext) -> dict[tuple[ast.AST, str], list[tuple[int, ast.stmt]]]:  # noqa: ARG001
    """The statements of a block that may test a value, with their positions, for the blocks that were asked for."""
    return {}


def _excludes(statement: ast.stmt, names: frozenset[str], file: FileContext) -> bool:
    """Whether a statement before the place leaves, complains or repairs when the value is singular."""
    if isinstance(statement, ast.Assert):
        return tests_value(statement.test, names, file)
    if isinstance(statement, ast.If) and tests_value(statement.test, names, file):
        return leaves(statement.body) or leaves(statement.orelse) or bool(names & _assigned(statement))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = (terminal_name(statement.value.func) or "").lower()
        if any(word in name for word in _CHECKING_CALLS):
            return any(tests_value(argument, names, file) for argument in statement.value.args[:1])
    return False


def _assigned(statement: ast.stmt) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets: Iterable[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                inner = target.value if isinstance(target, ast.Subscript) else target
                found.add(dotted_name(inner) or "")
    return found


def tests_value(test: ast.expr, names: frozenset[str], file: FileContext) -> bool:
    """Whether a condition says something about the value of one of the names, not just about its type or rank.

    The test may be of something computed from them: `n = mask.sum()`, then `if n == 0`.
    """
    for key, node in _keys_of_condition(test):
        if not _about_value(node, test, file):
            continue
        if key in names:
            return True
        definition = file.values.single_definition(node)
        if definition is None or file.values.value(definition).kind is Kind.NUMBER:
            continue
        if any(inner in names for inner, _ in value_names(definition)):
            return True
    return False


def _keys_of_condition(test: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id, node
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield f"self.{node.attr}", node


def _about_value(node: ast.expr, test: ast.expr, file: FileContext) -> bool:
    child: ast.AST = node
    while child is not test:
        outer = file.parent(child)
        if outer is None:
            return True
        if _is_about_size(outer):
            return _compares_with_small_constant(test)
        if _is_about_type(outer):
            return False
        child = outer
    # A bare name as the whole condition (`if mask:`) is a test for None or for emptiness, hardly one of values.
    return child is not node or isinstance(file.parent(test), (ast.UnaryOp, ast.Assert))


def _is_about_size(outer: ast.AST) -> bool:
    if isinstance(outer, ast.Attribute):
        return outer.attr in _SIZE_ATTRIBUTES
    return isinstance(outer, ast.Call) and terminal_name(outer.func) == "len"


def _is_about_type(outer: ast.AST) -> bool:
    if isinstance(outer, ast.Attribute):
        return outer.attr in _SHAPE_ATTRIBUTES
    if isinstance(outer, ast.Call):
        return terminal_name(outer.func) in _NOT_ABOUT_VALUES
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(outer, ast.Compare) and any(isinstance(operator, identity) for operator in outer.ops)


def _compares_with_small_constant(test: ast.expr) -> bool:
    """`x.shape[0] == 0` and `x.numel() > 1` are about emptiness; `x.shape[1] == 3` is not."""
    constants = [node.value for node in ast.walk(test) if isinstance(node, ast.Constant)]
    compares = any(isinstance(node, ast.Compare) for node in ast.walk(test))
    return not compares or any(value in (0, 1) and not isinstance(value, bool) for value in constants)
